# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Interfaces of JAX that are private or may move. Tried on jax 0.10.2 and 0.12.0."""

import inspect
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from dovetail_profile.program.module import Module

if TYPE_CHECKING:
    import jax

# JAX logs these as warnings under jax_explain_cache_misses, and else not at all or for debugging.
EXPLANATIONS = (
    "TRACING CACHE MISS",
    "PERSISTENT COMPILATION CACHE MISS",
    "Not writing persistent cache entry",
    "Writing %s to persistent compilation cache",
)

_SHOWN = 80  # characters of a value


def module_of_compiled(compiled: "jax.stages.Compiled") -> Module:
    """Returns the optimized program of a device, with its buffers if the compiler kept them.

    Args:
        compiled: From `jax.jit(f).lower(...).compile()`, for devices that are here or absent.

    Raises:
        TypeError: It is something else.
    """
    import jax

    if not isinstance(compiled, jax.stages.Compiled):
        if isinstance(compiled, jax.stages.Lowered):
            instead = "lowered.compile()"
        elif callable(getattr(compiled, "lower", None)):  # jitted
            instead = "f.lower(*arguments).compile()"
        else:
            instead = "jax.jit(f).lower(*arguments).compile() for a function f"
        raise TypeError(
            f"a program must be a jax.stages.Compiled, got {type(compiled).__name__}; "
            f"write {instead}"
        )
    executable: Any = compiled.runtime_executable()
    module = executable.hlo_modules()[0]  # all partitions run this one
    memory: Any = compiled.memory_analysis()
    buffers = getattr(memory, "serialized_buffer_assignment_proto", b"")  # TPUs give none
    return Module(memoryview(module.as_serialized_hlo_module_proto()), memoryview(buffers))


def changed_static_arguments() -> str:
    """Returns the changed static arguments of a function traced again, called from JAX's log.

    JAX 0.12 does not log them, JAX 0.10.2 logs their place without a name. Both hold the old and
    the new arguments in the function around the message. Empty if there are none, or if a later JAX
    holds them elsewhere.
    """
    frame: FrameType | None = sys._getframe()
    while frame and not (frame.f_code.co_name == "explain" and "in_avals" in frame.f_locals):
        frame = frame.f_back
    if frame is None:
        return ""
    try:
        names = frame.f_locals
        now = _static(names["fun"], names["in_avals"])
        before = [_static(names["fun"], key[1][0]) for key in names["keys"]]
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return ""
    changes = [
        "; ".join(
            f"static argument {name}, now {now[name][:_SHOWN]} and before {old[name][:_SHOWN]}"
            for name in now
            if name in old and old[name] != now[name]
        )
        for old in before
    ]
    # Empty if an earlier call had the same ones: then it was something else.
    return min(changes, key=len, default="")


def _static(function: Any, abstract: Any) -> Mapping[str, str]:
    """Returns the static arguments of a call by name, as text."""
    import jax

    args, options = abstract.unflatten()
    arguments = inspect.signature(function).bind(*args, **options).arguments
    values = {name: getattr(value, "val", value) for name, value in arguments.items()}
    return {
        name: repr(value)
        for name, value in values.items()
        # A dtype has a shape too, and is static.
        if not any(hasattr(x, "shape") and hasattr(x, "dtype") for x in jax.tree.leaves(value))
    }


def live_modules() -> Iterator[tuple[bytes, bytes]]:
    """Yields HLO and assignment of buffers of each program on the default backend."""
    import jax

    # Not by jax.extend.backend: its import changes options of functions, which are traced again.
    for executable in jax.local_devices()[0].client.live_executables():
        hlo = executable.hlo_modules()[0].as_serialized_hlo_module_proto()
        memory = executable.get_compiled_memory_stats()
        yield hlo, getattr(memory, "serialized_buffer_assignment_proto", b"")  # TPUs give none

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of JAX that have moved or may move. Tried on jax 0.10.2 and 0.12.0."""

from typing import Any

import jax

from dovetail_profile.program.module import Module


def module_of_compiled(compiled: jax.stages.Compiled) -> Module:
    """Returns the optimized program of one device, with its buffers if the compiler kept them.

    Args:
        compiled: From `jax.jit(f).lower(...).compile()`, for devices that are here or absent.

    Raises:
        TypeError: It is something else. The text says what to write.
    """
    if not isinstance(compiled, jax.stages.Compiled):
        raise TypeError(
            f"a program must be a jax.stages.Compiled, got {type(compiled).__name__}; "
            f"{_instead(compiled)}"
        )
    executable: Any = compiled.runtime_executable()
    module = executable.hlo_modules()[0]  # all partitions run this one
    memory: Any = compiled.memory_analysis()
    buffers = getattr(memory, "serialized_buffer_assignment_proto", b"")  # TPUs give none
    return Module(memoryview(module.as_serialized_hlo_module_proto()), memoryview(buffers))


def _instead(value: object) -> str:
    if isinstance(value, jax.stages.Lowered):
        return "write lowered.compile()"
    if callable(getattr(value, "lower", None)):
        return "write f.lower(*arguments).compile()"
    if callable(value):
        return "write jax.jit(f).lower(*arguments).compile()"
    return "write jax.jit(f).lower(*arguments).compile() for a function f"

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sentences for refusals of JAX: custom calls, values of arrays, symbolic numbers of rows."""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence

import jax

from dovetail_serve.exporting.frames import function_of, place_of

_TARGET = re.compile(r"custom_call @([\w.$\-]+)")
_PATH = re.compile(r"""["']?(?:[A-Za-z]:)?[/\\][\w.\-/\\]+["']?|https?://\S+""")
# Longest reason that a manifest holds.
_LONGEST = 240
# In errors of operations that need the number of rows as an integer. The last one is that of jax
# 0.12 for a Python loop over rows.
_INTEGER_NEEDED = ("_DimExpr", "requires a constant", "no attribute 'process_primitive'")
# An argument of the traced function, as JAX names it.
_ARGUMENT = re.compile(r"(arrays|weights)\['([^']+)'\]")


@dataclasses.dataclass(frozen=True)
class _Use:
    """A use of the values of a traced array, and its replacement.

    Attributes:
        error: The exception of JAX.
        text: Pattern of its message.
        came: The use.
        write: Its replacement.
    """

    error: type[Exception]
    text: str
    came: str
    write: str


_ERRORS = jax.errors
_CONDITION = "a Python condition (if, while, and, or, not, assert, min, max)"
_CONDITIONALS = "jnp.where(condition, a, b), jnp.maximum, jax.lax.cond or jax.lax.while_loop"
# The first that fits counts.
_USES = (
    _Use(
        _ERRORS.TracerBoolConversionError,
        "",
        _CONDITION,
        _CONDITIONALS,
    ),
    _Use(
        ValueError,
        "truth value of an array with more than one element",
        _CONDITION,
        _CONDITIONALS,
    ),
    _Use(
        _ERRORS.NonConcreteBooleanIndexError,
        "",
        "a boolean mask as an index",
        "jnp.where(mask, x, 0), which keeps the shape",
    ),
    _Use(
        _ERRORS.TracerArrayConversionError,
        "",
        "an argument of NumPy or another library",
        "the function of jax.numpy: jnp in place of np",
    ),
    _Use(
        _ERRORS.TracerIntegerConversionError,
        "",
        "a Python integer (range, the index of a list)",
        "jnp.take(values, i), or jax.lax.fori_loop(start, stop, body, x)",
    ),
    _Use(
        _ERRORS.ConcretizationTypeError,
        r"\bsize\b|jnp\.\w+ must|total_repeat_length|total number of repeats",
        "the shape of a result (nonzero, unique, jnp.where of one argument, repeat)",
        "a fixed size, such as jnp.nonzero(x, size=8, fill_value=-1) or "
        "jnp.repeat(x, n, total_repeat_length=8)",
    ),
    _Use(
        _ERRORS.ConcretizationTypeError,
        r"jnp\.arange|jnp\.linspace",
        "a number of elements (jnp.arange)",
        "a fixed number with a mask, such as jnp.where(jnp.arange(8) < n, x, 0)",
    ),
    _Use(
        _ERRORS.ConcretizationTypeError,
        "",
        "a Python number (int(), float(), item(), tolist())",
        "the array itself, x.astype('int32') for another dtype",
    ),
    _Use(
        TypeError,
        r"concrete values of integer type.*Tracer",
        "a shape",
        "a fixed shape, and jnp.where for the elements that do not count",
    ),
    _Use(
        IndexError,
        r"static.*Tracer|Tracer.*static",
        "the bounds of a slice",
        "jax.lax.dynamic_slice_in_dim(x, start, size) with a fixed size",
    ),
)


def is_callback(target: str) -> bool:
    """Whether a custom call runs a Python function of the process, as jaxlib names them.

    Examples: xla_ffi_python_cpu_callback, xla_ffi_partitioned_python_gpu_callback.
    """
    return "callback" in target.lower()


def check_targets(custom_calls: Sequence[str]) -> None:
    """Raises ValueError if a custom call to allow runs a Python function."""
    for target in custom_calls:
        if is_callback(target):
            raise ValueError(
                "custom_calls must not call back into Python, since a bundle holds no code, got "
                f"{target!r}; remove it from fn, or compute on the host with "
                "before=HostFunction(...)"
            )


def custom_call_refusal(error: Exception, allowed: Sequence[str]) -> ValueError | None:
    """Returns the error for custom calls that `jax.export` does not promise to keep.

    Args:
        error: The exception of `jax.export`.
        allowed: Targets allowed by the caller.

    Returns:
        The error to raise; None if the exception has another cause.

    Raises:
        ValueError: A custom call runs a Python function, and cannot be allowed.
    """
    targets = sorted(set(_TARGET.findall(str(error))))
    if not targets or "compatibility guarantees" not in str(error):
        return None
    check_targets(targets)
    names = (*allowed, *targets)
    return ValueError(
        "fn must make no custom calls but those that jax.export promises to keep, got "
        f"{', '.join(map(repr, targets))}; write custom_calls={names!r} to allow it, and the "
        "bundle loads with this version of jaxlib alone"
    )


@contextlib.contextmanager
def values_refused() -> Iterator[None]:
    """Turns JAX's errors about the values of traced arrays into one of the user's line."""
    try:
        yield
    except Exception as error:
        refusal = value_refusal(error)
        if refusal is None:
            raise
        # Without JAX's text, which names a function of this package; its frames are the user's.
        raise refusal.with_traceback(error.__traceback__) from None


def value_refusal(error: Exception) -> ValueError | None:
    """Returns the error for a function that needs the values of traced arrays; None for others."""
    text = " ".join(str(error).split())
    for use in _USES:
        if isinstance(error, use.error) and re.search(use.text, text):
            break
    else:
        return None
    arguments = dict.fromkeys(f"{kind[:-1]} {name!r}" for kind, name in _ARGUMENT.findall(text))
    names = ", ".join(arguments).replace("array ", "the input ").replace("weight ", "the weight ")
    return ValueError(
        "fn must not need the values of its arrays, since it is traced once for all of them, got "
        f"{use.came} that depends on {names or 'an array'}, at {place_of(error)}; write {use.write}"
    )


def symbolic_refusal(error: Exception) -> str:
    """Returns one sentence on why a function did not trace with a symbolic number of rows.

    It names the innermost function that is not JAX's, and holds no paths of this machine.
    """
    text = " ".join(str(error).split())
    sentence = _PATH.sub("a file", re.split(r"(?<=[.!])\s", text, maxsplit=1)[0]).rstrip(".")
    sentence = sentence or type(error).__name__
    if any(words in sentence for words in _INTEGER_NEEDED):
        sentence = "an operation needs the number of rows as an integer"
    reason = f"{function_of(error)} refuses a symbolic number of rows: {sentence}"
    return reason if len(reason) <= _LONGEST else f"{reason[: _LONGEST - 3]}..."

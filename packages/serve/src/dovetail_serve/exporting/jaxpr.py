# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A traced function before it is serialized: callbacks, captured arrays, and its precision."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from dovetail_serve.exporting.caller import warn

# Captured arrays of more bytes in total are warned about: each program repeats them.
CAPTURED_BYTES = 1 << 20
# Operations that move values. A weight of 8 bits may be transposed before it is converted.
_MOVES = frozenset(
    {
        "broadcast_in_dim",
        "concatenate",
        "copy",
        "dynamic_slice",
        "dynamic_update_slice",
        "gather",
        "optimization_barrier",
        "reshape",
        "rev",
        "select_n",
        "sharding_constraint",
        "slice",
        "sort",
        "split",
        "squeeze",
        "top_k",
        "transpose",
    }
)


def check_jaxpr(closed: ClosedJaxpr) -> None:
    """Refuses callbacks, and warns about large captured arrays.

    Args:
        closed: The traced function.

    Raises:
        ValueError: It calls back into Python.

    Warns:
        UserWarning: It has captured more than 1 MiB of arrays instead of taking them as weights.
    """
    for inner in _all(closed):
        for equation in _equations(inner):
            name = equation.primitive.name
            if "callback" in name or name == "debug_print":
                raise ValueError(
                    "fn must not call back into Python, since a bundle holds no code, got the "
                    f"operation {name!r}; remove jax.debug.print and callbacks, or compute on the "
                    "host with before=HostFunction(...)"
                )
    if (size := sum(getattr(each, "nbytes", 0) for each in _captured(closed))) > CAPTURED_BYTES:
        warn(
            f"fn captures {size} bytes of arrays, and each program of the bundle repeats them; "
            "pass them in params, and the bundle stores them once"
        )


def captures_floats(closed: ClosedJaxpr) -> bool:
    """Returns whether a traced function has captured arrays of floats, other than scalars."""
    return any(
        jax.numpy.issubdtype(each.dtype, np.inexact) and each.ndim > 0
        for each in _captured(closed)
        if hasattr(each, "dtype")
    )


def coarsest(closed: ClosedJaxpr, *, least: str | None = None) -> str | None:
    """Returns the floating-point dtype of the results of arithmetic with the largest epsilon.

    A dtype of fewer than 16 bits counts as bfloat16. One value of 8 bits would else allow results
    of float32 an error of a quarter.

    Args:
        closed: The traced function.
        least: A dtype to which this machine may round products of float32; counts if there is
            any arithmetic of floats.

    Returns:
        Its name; None for a function without arithmetic of floats.
    """
    names = {
        np.dtype(dtype).name if jax.numpy.finfo(dtype).bits >= 16 else "bfloat16"
        for inner in _all(closed)
        for equation in _equations(inner)
        if not _moves(equation)
        for variable in equation.outvars
        # Random keys have dtypes of JAX's own.
        if jax.numpy.issubdtype(dtype := getattr(variable.aval, "dtype", np.int32), np.inexact)
    }
    if names and least is not None:
        names.add(least)
    return max(names, key=lambda name: float(jax.numpy.finfo(name).eps), default=None)


def _moves(equation: Any) -> bool:
    """Whether an operation rounds nothing itself: it moves values, or calls a function of others.

    The operations within a call are looked at one by one.
    """
    return equation.primitive.name in _MOVES or any(
        isinstance(each, ClosedJaxpr | Jaxpr)
        for param in equation.params.values()
        for each in (param if isinstance(param, tuple | list) else [param])
    )


def _captured(closed: ClosedJaxpr) -> list[Any]:
    """Returns the constants of a function and of those within it, each once."""
    captured = {
        id(const): const
        for inner in _all(closed)
        if isinstance(inner, ClosedJaxpr)
        for const in inner.consts
    }
    return list(captured.values())


def _all(closed: ClosedJaxpr) -> Iterator[ClosedJaxpr | Jaxpr]:
    """Yields a function and all functions within it: bodies of loops, branches, inner jits."""
    seen: dict[int, Any] = {}  # the objects too, so that no identity is used twice
    values: list[Any] = [closed]
    while values:
        value = values.pop()
        if isinstance(value, tuple | list):
            values += value
        # A function that is called twice is one object.
        elif isinstance(value, ClosedJaxpr | Jaxpr) and id(value) not in seen:
            seen[id(value)] = value
            yield value
            if isinstance(value, ClosedJaxpr):
                values.append(value.jaxpr)
            values += [param for each in _equations(value) for param in each.params.values()]


def _equations(value: ClosedJaxpr | Jaxpr) -> Sequence[Any]:
    """Returns the operations of a function. From jax 0.12 both classes are one."""
    return value.eqns if isinstance(value, Jaxpr) else ()

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes that are symbolic dimensions of `jax.export`: known only when the program is called.

Code that cuts loops and tiles compares sizes, and a comparison with a symbolic one raises JAX's
error in the middle of an operation. Implementations either do without the comparison or refuse the
call (`known_sizes`). An operation answers what remains with `refuse_symbolic_sizes`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
from jax.errors import ConcretizationTypeError, InconclusiveDimensionOperation

# Of comparisons, and of tests of a size that became an array.
_ERRORS = InconclusiveDimensionOperation, ConcretizationTypeError


def is_symbolic(size: Any) -> bool:
    """Tests whether a size is known only when an exported program is called."""
    return not isinstance(size, int)


def has_symbolic_sizes(call: Any) -> bool:
    """Tests whether a field of a `Call` is a symbolic dimension."""
    from jax.export import is_symbolic_dim

    if not dataclasses.is_dataclass(call):  # None, of an operation with one implementation
        return False
    values = [getattr(call, field.name) for field in dataclasses.fields(call)]
    leaves = [
        leaf for value in values for leaf in (value if isinstance(value, tuple) else (value,))
    ]
    return any(map(is_symbolic_dim, leaves))


def refuse_symbolic_sizes(operation: str, given: Mapping[str, Any], error: Exception) -> None:
    """Raises the operation's error if `error` is JAX's, about a symbolic dimension of an argument.

    Args:
        operation: Name of the operation.
        given: Its arguments by name.
        error: An error of the call.

    Raises:
        NotImplementedError: `error` is of that kind.
    """
    symbolic = [
        f"{name}.shape={tuple(leaf.shape)}"
        for name, value in given.items()
        for leaf in jax.tree.leaves(value)
        if any(map(is_symbolic, getattr(leaf, "shape", ())))
    ]
    if symbolic and (isinstance(error, _ERRORS) or "_DimExpr" in str(error)):
        raise NotImplementedError(
            f"{operation} needs to know this size before it runs, got a symbolic dimension of "
            f"jax.export in {', '.join(symbolic)}. Use a number there, with one export for each "
            "size."
        ) from None

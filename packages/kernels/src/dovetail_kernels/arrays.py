# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A check that arguments are arrays. Lists have no shape, and Python does not say whose it was."""

from typing import Any


def check_arrays(operation: str, **arrays: Any) -> None:
    """Raises TypeError for an argument without shape and dtype. None passes.

    Args:
        operation: Name of the operation, for the message.
        arrays: Arguments by name: arrays, tracers, `jax.ShapeDtypeStruct` or NNX variables.
    """
    for name, array in arrays.items():
        if array is not None and not (hasattr(array, "shape") and hasattr(array, "dtype")):
            raise TypeError(
                f"{operation} needs {name} as an array, got {name} of type "
                f"{type(array).__name__}. Use jnp.asarray({name})."
            )

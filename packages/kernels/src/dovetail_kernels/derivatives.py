# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Operations with first derivatives alone, in reverse mode.

Their gradients are written out (`jax.custom_vjp`), in loops that JAX cannot differentiate. A second
derivative, as by `jax.hessian`, would fail in such a loop, with an error that names the loop. The
rules of a gradient therefore pass their arrays through `first_order`. Forward mode of the operation
itself (`jax.jvp`, `jax.jacfwd`) cannot be answered here: JAX refuses it for every `custom_vjp`,
before the rules run.
"""

import functools
from typing import Any, TypeVar

import jax

TreeT = TypeVar("TreeT")

INSTEAD = 'Use impl="reference", which JAX differentiates'


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def first_order(operation: str, instead: str, tree: TreeT) -> TreeT:
    """Returns `tree`, arrays of a gradient's rule; its derivative raises an error.

    Args:
        operation: Name for the error message.
        instead: The call with second derivatives, in words from "Use" on, without a full stop.
        tree: Pytree of arrays.

    Raises:
        NotImplementedError: A derivative of the gradient is requested.
    """
    del operation, instead
    return tree


@first_order.defjvp
def _refuse(operation: str, instead: str, primals: Any, tangents: Any) -> Any:
    del primals, tangents
    raise NotImplementedError(
        f"{operation} has first derivatives alone, in reverse mode, got a derivative of its "
        f"gradient, as by jax.hessian or jax.grad of jax.grad. {instead}, or jax.lax.stop_gradient "
        "on its arguments."
    )

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Operations with first derivatives alone, in reverse mode.

Their gradients are written out (`jax.custom_vjp`), in loops that JAX cannot differentiate. A second
derivative, as by `jax.hessian`, would fail in such a loop, with an error that names the loop. The
rules of a gradient therefore pass their arrays through `first_order`.

JAX refuses forward mode (`jax.jvp`, `jax.jacfwd`, `jax.linearize`) of every `custom_vjp` without
the operation's name, before its rules run. The arguments therefore pass through `reverse_mode`
first. Their tangents become the operand of a linear primitive that is its own transpose and has no
value. Reverse mode transposes it; forward mode evaluates or lowers it, which raises the error.
"""

import functools
from typing import Any, NoReturn, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

TreeT = TypeVar("TreeT")

INSTEAD = 'Use impl="reference", which JAX differentiates'
UNPACKED = "Use x @ unpack_weights(w), which JAX differentiates"
# By operation: the call with forward mode, if it is not `INSTEAD`. Indexing gives the values of a
# permutation.
_FORWARD = {
    "quantized_matmul": UNPACKED,
    "permute": "Use x[plan.choices // k] with the plan of permute",
    "unpermute": "Use (rows[plan.places] * weights[:, :, None]).sum(1)",
}


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


def reverse_mode(operation: str, tree: TreeT) -> TreeT:
    """Returns `tree`, arguments of an operation without forward mode, which raises an error there.

    Args:
        operation: Name for the error message.
        tree: Pytree of arrays.

    Raises:
        NotImplementedError: A derivative in forward mode is evaluated or compiled.
    """

    # Each array by itself: a tree with one tangent would get zeros for all others, and the rules
    # of a gradient would form those too.
    def marked(array: Any) -> Any:
        floating = jnp.issubdtype(array.dtype, jnp.floating)
        return _marked(operation, array) if floating else array

    return jax.tree.map(marked, tree)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _marked(operation: str, array: jax.Array) -> jax.Array:
    del operation
    return array


@_marked.defjvp
def _mark(operation: str, primals: Any, tangents: Any) -> Any:
    (tangent,) = tangents
    return primals[0], _reverse_p.bind(tangent, operation=operation)


def refuse_forward_mode(*args: Any, operation: str, **kwargs: Any) -> NoReturn:
    """Raises the error about forward mode.

    Args:
        args: Ignored, as the primitive's rules pass them.
        operation: Name for the error message.
        kwargs: Ignored.

    Raises:
        NotImplementedError: Always.
    """
    del args, kwargs
    raise NotImplementedError(
        f"{operation} has derivatives in reverse mode alone (jax.grad, jax.vjp), got one in "
        "forward mode, as by jax.jvp, jax.jacfwd or jax.linearize. "
        f"{_FORWARD.get(operation, INSTEAD)}, or jax.lax.stop_gradient on its arguments."
    ) from None


def is_of_forward_mode(error: Exception) -> bool:
    """Tests whether JAX refused forward mode of a `custom_vjp`.

    It does so first where `jax.jit` stages tangents of several directions (`jax.jacfwd`).
    """
    return isinstance(error, TypeError) and "to a custom_vjp function" in str(error)


# Tried on jax 0.10.2 and 0.12.0.1.
_reverse_p = Primitive("reverse_mode")
_reverse_p.def_impl(refuse_forward_mode)
_reverse_p.def_abstract_eval(lambda tangent, **_: tangent)
ad.deflinear2(_reverse_p, lambda cotangent, _, **__: [cotangent])
batching.defvectorized(_reverse_p)
mlir.register_lowering(_reverse_p, refuse_forward_mode)

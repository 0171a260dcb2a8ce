# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Second derivatives and forward mode: refused with the call that has them, or right."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels import (
    attention,
    glu,
    grouped_matmul,
    layer_norm,
    linear_cross_entropy,
    linear_logprobs,
    pack_weights,
    permute,
    quantized_matmul,
    rms_norm,
    rope,
    unpack_weights,
    unpermute,
)
from dovetail_kernels.derivatives import first_order

rng = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


K, V, SEGMENTS = normal(2, 6, 2, 4), normal(2, 6, 2, 3), jnp.array([[0, 0, 1, 1, 1, 2]] * 2)
HEAD, LABELS, WHERE = normal(4, 9), jnp.array([1, 8, 3]), jnp.array([1.0, 0.0, 0.5])
EXPERTS, SIZES = normal(2, 4, 3), jnp.array([1, 2])
PACKED = pack_weights(normal(4, 6), bits=8)


def attend(q, **impl):
    return attention(
        q,
        K.astype(q.dtype),
        V.astype(q.dtype),
        causal=True,
        segment_ids=SEGMENTS,
        soft_cap=2.0,
        **impl,
    )


def cross_entropy(x, **impl):
    ce = linear_cross_entropy(x, HEAD.astype(x.dtype), LABELS, where=WHERE, z_loss=0.1, **impl)
    return ce.sum[None]


def logprobs(x, **impl):
    return jnp.stack(linear_logprobs(x, HEAD.astype(x.dtype), LABELS, soft_cap=2.0, **impl))


def mixture(x, **impl):
    return grouped_matmul(x, EXPERTS.astype(x.dtype), SIZES, **impl)


def quantized(x, **impl):
    return quantized_matmul(x, PACKED, **impl)


OPERATIONS = {
    "attention": (attend, (2, 6, 4, 4), ("blocked",)),
    "linear_cross_entropy": (cross_entropy, (3, 4), ("blocked",)),
    "linear_logprobs": (logprobs, (3, 4), ("blocked",)),
    "grouped_matmul": (mixture, (3, 4), ("tiles", "ragged_dot")),
    "quantized_matmul": (quantized, (3, 4), ("split", "blocks", "scaled", "reference")),
}
EACH = [(name, impl) for name, (_, _, impls) in OPERATIONS.items() for impl in impls]


def total(function, x):
    return jnp.sum(jnp.sin(function(x)))


SECOND = {
    "grad of grad": lambda f: jax.grad(lambda x: jnp.sum(jax.grad(f)(x))),
    "hessian": jax.hessian,
    "jvp of grad": lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (x,)),
    "jit": lambda f: jax.jit(jax.grad(lambda x: jnp.sum(jax.jit(jax.grad(f))(x)))),
}


@pytest.mark.parametrize("name, impl", EACH)
def test_a_second_derivative_of_a_sum_is_refused(name, impl):
    """Its cotangents are constants, so the arrays alone vary."""
    function, shape, _ = OPERATIONS[name]
    with pytest.raises(NotImplementedError, match=f"^{name} has first derivatives alone"):
        jax.hessian(lambda x: jnp.sum(function(x, impl=impl)))(normal(*shape))


@pytest.mark.parametrize("name, impl", EACH)
@pytest.mark.parametrize("second", SECOND)
def test_a_second_derivative_is_refused(name, impl, second):
    function, shape, _ = OPERATIONS[name]
    instead = "x @ unpack_weights" if name == "quantized_matmul" else 'impl="reference"'
    message = rf"^{name} has first derivatives alone, in .*, got a derivative of .* Use {instead}"
    with pytest.raises(NotImplementedError, match=message):
        SECOND[second](functools.partial(total, functools.partial(function, impl=impl)))(
            normal(*shape)
        )


FORWARD = {
    "jvp": lambda f, x: jax.jvp(f, (x,), (x,)),
    "jacfwd": lambda f, x: jax.jacfwd(f)(x),
    "linearize": lambda f, x: jax.linearize(f, x)[1](x),
    "jit of jvp": lambda f, x: jax.jit(lambda x: jax.jvp(jax.jit(f), (x,), (x,)))(x),
    "jit of jacfwd": lambda f, x: jax.jit(jax.jacfwd(f))(x),
    "scan": lambda f, x: jax.jvp(
        lambda x: jax.lax.scan(lambda c, _: (c, f(c)), x, length=2)[1], (x,), (x,)
    ),
}


@pytest.mark.parametrize("name, impl", EACH)
def test_forward_mode_is_refused(name, impl):
    function, shape, _ = OPERATIONS[name]
    instead = "x @ unpack_weights" if name == "quantized_matmul" else 'impl="reference"'
    message = (
        rf"^{name} has derivatives in reverse mode alone .*, got one in forward .* Use {instead}"
    )
    for forward in FORWARD.values():
        with pytest.raises(NotImplementedError, match=message):
            forward(functools.partial(function, impl=impl), normal(*shape))


def test_forward_mode_of_a_permutation_is_refused_with_its_indexing():
    """The advice is right in both modes: against the gradient in reverse mode."""
    x, along, gates = normal(5, 3), normal(5, 3), jnp.abs(normal(5, 2))
    experts = jnp.array([[0, 2], [1, 0], [2, 1], [0, 1], [1, 2]])

    def mixed(x):
        rows, _, plan = permute(x, experts, count=3)
        return jnp.sum(jnp.sin(unpermute(jnp.cos(rows), plan, gates)))

    def indexed(x):
        plan, k = permute(jax.lax.stop_gradient(x), experts, count=3)[2], 2
        rows, weights = jnp.cos(x[plan.choices // k]), gates
        return jnp.sum(jnp.sin((rows[plan.places] * weights[:, :, None]).sum(1)))

    slope = jnp.vdot(jax.grad(mixed)(x), along)
    np.testing.assert_allclose(jax.jvp(indexed, (x,), (along,))[1], slope, rtol=1e-5)
    for f in (mixed, jax.grad(mixed)):
        with pytest.raises(NotImplementedError, match=r"permute .* Use x\[plan.choices // k\]"):
            jax.jvp(f, (x,), (along,))


@pytest.mark.parametrize("name, impl", EACH)
def test_a_derivative_by_the_cotangent_is_refused(name, impl):
    """Cotangents alone vary in the derivative of a vjp by its argument."""
    function, shape, _ = OPERATIONS[name]
    out, pull = jax.vjp(functools.partial(function, impl=impl), normal(*shape))
    with pytest.raises(NotImplementedError, match=f"^{name} has first derivatives alone"):
        jax.grad(lambda c: jnp.sum(pull(c)[0] ** 2))(jnp.ones_like(out))


EVERY = {
    "rms_norm": (lambda x: rms_norm(x, None, eps=1e-6), (3, 4)),
    "layer_norm": (lambda x: layer_norm(x, None, None, eps=1e-6), (3, 4)),
    "rope": (lambda x: rope(x, jnp.arange(3)[None], theta=1e4), (1, 3, 2, 4)),
    "glu": (lambda x: glu(x, x[::-1]), (3, 4)),
    **{
        name: (functools.partial(function, impl="reference"), shape)
        for name, (function, shape, _) in OPERATIONS.items()
        if name != "quantized_matmul"
    },
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", EVERY)
def test_references_and_plain_formulas_have_every_derivative(name):
    """Against central differences of its own first gradient, in float64 under x64.

    Their error is about step^2 = 1e-8 of the third derivative. The first gradient is compared with
    NumPy by the conformance suites.
    """
    function, shape = EVERY[name]
    f = functools.partial(total, function)

    @jax.jit
    def derivatives(x, direction):
        _, forward = jax.jvp(f, (x,), (direction,))
        by_forward = jax.jvp(jax.grad(f), (x,), (direction,))[1]
        by_reverse = jax.grad(lambda x: jnp.vdot(jax.grad(f)(x), direction))(x)
        hessian = jax.hessian(f)(x).reshape(x.size, x.size) @ direction.reshape(-1)
        return forward, (by_forward, by_reverse, hessian.reshape(x.shape))

    with jax.enable_x64(True):
        x, direction = rng.standard_normal(shape), rng.standard_normal(shape)
        gradient = jax.jit(jax.grad(f))
        up, down = (gradient(x + sign * 1e-4 * direction) for sign in (1, -1))
        expected, slope = (up - down) / 2e-4, np.vdot(gradient(x), direction)
        forward, second = derivatives(x, direction)
    # Sums of some hundred products in float64, in another order. The differences of gradients err
    # by the square of their step, 1e-8 times a third derivative.
    np.testing.assert_allclose(forward, slope, rtol=1e-10)
    for found in second:
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.thorough
def test_a_permutation_has_second_derivatives_in_reverse_mode():
    """Its gradients are gathers and products, which JAX differentiates: against their formula."""
    x, gates = normal(5, 3), jnp.abs(normal(5, 2))
    experts = jnp.array([[0, 2], [1, 0], [2, 1], [0, 1], [1, 2]])

    def mixed(x, gates):
        rows, _, plan = permute(x, experts, count=3)
        return jnp.sum(jnp.sin(unpermute(rows, plan, gates)))

    def plain(x, gates):
        return jnp.sum(jnp.sin(x * gates.sum(1, keepdims=True)))

    for f in (mixed, plain):
        dx, dgates = jax.grad(
            lambda x, g, f=f: sum(jnp.sum(d**2) for d in jax.grad(f, (0, 1))(x, g)), (0, 1)
        )(x, gates)
        if f is mixed:
            got = dx, dgates
    np.testing.assert_allclose(got[0], dx, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[1], dgates, rtol=1e-5, atol=1e-5)


@pytest.mark.thorough
def test_the_advice_for_quantized_weights_is_differentiated_twice():
    x = normal(3, 4)
    hessian = jax.hessian(lambda x: total(lambda x: x @ unpack_weights(PACKED), x))(x)
    w = np.asarray(unpack_weights(PACKED), np.float64)
    sines = -np.sin(np.asarray(x, np.float64) @ w)
    expected = np.einsum("mf,df,ef->mde", sines, w, w)
    np.testing.assert_allclose(np.einsum("mdme->mde", hessian), expected, rtol=1e-4, atol=1e-5)


def test_first_order_is_the_identity_of_values_and_first_gradients():
    tree = {"a": jnp.arange(3.0), "ids": jnp.arange(2), "none": None}
    same = first_order("toy", "Use another", tree)
    assert same["none"] is None
    np.testing.assert_array_equal(same["a"], tree["a"])
    message = "^toy has first .* jax.grad of jax.grad. Use another, or jax.lax.stop_gradient on"
    with pytest.raises(NotImplementedError, match=message):
        jax.grad(lambda a: first_order("toy", "Use another", a).sum())(tree["a"])

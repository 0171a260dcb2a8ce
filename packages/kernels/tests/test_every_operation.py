# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every public operation in forward mode, under vmap of its gradient, and with a symbolic axis.

The result is right, or the error is the operation's own, with the call to type instead.
"""

import functools
import inspect
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dovetail_kernels
from dovetail_kernels import (
    PackedWeights,
    adjust_logits,
    attention,
    glu,
    grouped_matmul,
    layer_norm,
    linear_cross_entropy,
    linear_logprobs,
    pack_weights,
    paged_attention,
    paged_write,
    permute,
    quantized_matmul,
    rms_norm,
    rope,
    route_tokens,
    sample,
    token_logprobs,
    unpack_weights,
    unpermute,
    warp_logits,
)

rng = np.random.default_rng(0)


def normal(*shape):
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


PAGES, HEAD, EXPERTS = normal(5, 2, 4, 2, 8), normal(6, 9), normal(2, 6, 5)
PACKED = {bits: pack_weights(normal(6, 10), bits=bits, group_size=6) for bits in (4, 8)}
CODES = jnp.asarray(rng.integers(-99, 99, (1, 6)), jnp.int8)


def ids(x, count):
    return jnp.arange(x.shape[0], dtype=jnp.int32) % count


def chosen(x):
    return (ids(x, 3)[:, None] + jnp.arange(2, dtype=jnp.int32)[None]) % 3


def paged(q):
    return paged_attention(
        q,
        PAGES,
        page_table=jnp.array([[0, 1], [2, 3]]),
        kv_lengths=jnp.array([6, 5]),
        q_starts=jnp.array([0, 3, 4]),
    )


def mixture(x):
    one = jnp.int32(1)
    return grouped_matmul(x, EXPERTS, jnp.stack([one, jnp.ones_like(ids(x, 2)).sum() - one]))


def unpermuted(x):
    plan = permute(jax.lax.stop_gradient(x), chosen(x), count=3)[2]
    return unpermute(x[plan.choices // 2], plan, jnp.ones((x.shape[0], 2)))


def unpacked(scales):
    values = jnp.broadcast_to(CODES, (scales.shape[0], 6))
    return unpack_weights(PackedWeights(values=values, scales=scales, zeros=None, bits=8)).T


def sampled(z):
    data = jnp.stack([ids(z, 7), ids(z, 5)], 1).astype(jnp.uint32)
    return sample(z, keys=jax.random.wrap_key_data(data), top_k=3)


# By operation: a function of x [M, ...], and the other axes of x.
OPERATIONS = {
    "attention": (lambda x: attention(x, x[:, :, :2], x[:, :, 2:], causal=True), (5, 4, 4)),
    "paged_attention": (paged, (4, 8)),
    "paged_write": (lambda k: paged_write(PAGES, k, -k, slots=ids(k, 20)), (2, 8)),
    "linear_cross_entropy": (
        lambda x: linear_cross_entropy(x, HEAD, ids(x, 9), z_loss=0.1).sum[None],
        (6,),
    ),
    "linear_logprobs": (lambda x: jnp.stack(linear_logprobs(x, HEAD, ids(x, 9))), (6,)),
    "route_tokens": (lambda z: route_tokens(z, k=2)[0], (6,)),
    "permute": (lambda x: permute(x, chosen(x), count=3)[0], (6,)),
    "unpermute": (unpermuted, (6,)),
    "grouped_matmul": (mixture, (6,)),
    "quantized_matmul": (lambda x: quantized_matmul(x, PACKED[8], impl="split"), (6,)),
    "unpack_weights": (unpacked, (2,)),
    "adjust_logits": (lambda z: adjust_logits(z, bias=0.5 * z), (9,)),
    "warp_logits": (lambda z: jnp.maximum(warp_logits(z, temperature=0.7, top_k=4), -9), (9,)),
    "token_logprobs": (lambda z: token_logprobs(z, ids(z, 9), k=2).logprobs, (9,)),
    "rms_norm": (lambda x: rms_norm(x, HEAD[:, 0], eps=1e-6), (6,)),
    "layer_norm": (lambda x: layer_norm(x, HEAD[:, 0], HEAD[:, 1], eps=1e-6), (6,)),
    "rope": (lambda x: rope(x, ids(x, 99), theta=1e4), (2, 4)),
    "glu": (lambda x: glu(x, jnp.cos(x)), (6,)),
}
# Integers have no derivative.
INTEGERS = {
    "sample": (sampled, (9,)),
    "pack_weights": (lambda w: pack_weights(w, bits=8).values, (6,)),
}


def _slow(value):
    return pytest.param(value, marks=pytest.mark.thorough)


FAST = ("linear_cross_entropy",)
THOROUGH = [name if name in FAST else _slow(name) for name in OPERATIONS]


def right_or_refused(name, check):
    """Runs `check`, and tests whether it comes to its end.

    The only error that may come is the operation's own, with its three parts.
    """
    try:
        check()
    except NotImplementedError as error:
        if not re.match(rf"{name} (has|needs) .*, got .*\. Use ", str(error)):
            raise
        return False
    return True


def total(name, x):
    return jnp.sum(jnp.sin(OPERATIONS[name][0](x)))


def test_the_table_has_every_operation():
    public = (getattr(dovetail_kernels, name) for name in dovetail_kernels.__all__)
    functions = {each.__name__ for each in public if inspect.isroutine(each) or callable(each)}
    about = {"explain", "record_calls", "tune", "tuning", "tuning_digest"}
    operations = {name for name in functions if name[0].islower()} - about
    assert operations == OPERATIONS.keys() | INTEGERS.keys()


FORWARD = {
    "jvp": lambda f, x, along: jax.jvp(f, (x,), (along,))[1],
    "jit of jvp": lambda f, x, along: jax.jit(lambda x: jax.jvp(jax.jit(f), (x,), (along,))[1])(x),
    "linearize": lambda f, x, along: jax.linearize(f, x)[1](along),
    "jit of jacfwd": lambda f, x, along: jnp.vdot(jax.jit(jax.jacfwd(f))(x), along),
}
REFUSED = {
    "attention",
    "paged_attention",
    "linear_cross_entropy",
    "linear_logprobs",
    "permute",
    "unpermute",
    "grouped_matmul",
    "quantized_matmul",
}


@pytest.mark.parametrize("name", THOROUGH)
def test_forward_mode(name):
    f, (x, along) = functools.partial(total, name), normal(2, 4, *OPERATIONS[name][1])
    gradient = jax.jit(jax.grad(f))
    for forward in FORWARD.values():

        def check(forward=forward):
            got = forward(f, x, along)
            # Sums of at most 320 products of about 1 in float32, in another order.
            np.testing.assert_allclose(got, jnp.vdot(gradient(x), along), rtol=2e-4, atol=2e-4)

        assert right_or_refused(name, check) != (name in REFUSED)


@pytest.mark.parametrize("name", THOROUGH)
def test_vmap_of_a_gradient(name):
    f, x = functools.partial(total, name), normal(2, 4, *OPERATIONS[name][1])
    gradient = jax.jit(jax.grad(f))

    def check():
        expected = np.stack([gradient(x[0]), gradient(x[1])])
        np.testing.assert_allclose(jax.vmap(gradient)(x), expected, rtol=1e-5, atol=1e-5)
        outside = jax.jit(jax.grad(lambda x: jnp.sum(jax.vmap(f)(x))))(x)
        np.testing.assert_allclose(outside, expected, rtol=1e-5, atol=1e-5)

    assert right_or_refused(name, check) != (name == "paged_attention")


# Where rows are cut into tiles or blocks, or joined with other arrays.
CUT = {"attention", "paged_attention", "linear_cross_entropy", "linear_logprobs", "permute"}
CUT |= {"unpermute", "grouped_matmul", "quantized_matmul"}


def symbolic():
    for name in OPERATIONS | INTEGERS:
        for axis in ("b", "b, s", "4*b"):
            fast = name in FAST and axis == "b"
            rare = axis == "4*b" and name not in CUT
            marks = [pytest.mark.thorough] * (not fast) + [pytest.mark.slow] * rare
            yield pytest.param(name, axis, marks=marks)


@pytest.mark.parametrize("name, axis", list(symbolic()))
def test_a_symbolic_first_axis(name, axis):
    """One export, called with 4 rows and with 8. `b, s` are joined to rows."""
    f, rest = (OPERATIONS | INTEGERS)[name]
    symbols = jax.export.symbolic_shape(axis)

    def joined(x):
        return f(x.reshape(math.prod(x.shape[: len(symbols)]), *rest))

    def check():
        abstract = jax.ShapeDtypeStruct((*symbols, *rest), jnp.float32)
        exported = jax.export.export(jax.jit(joined))(abstract)
        for rows in (4, 8):
            x = normal(rows, *rest)
            shaped = x if len(symbols) == 1 else x.reshape(2, rows // 2, *rest)
            got, expected = exported.call(shaped), jax.jit(f)(x)
            # Sums of at most 72 terms in float32, in another order.
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)

    assert right_or_refused(name, check)

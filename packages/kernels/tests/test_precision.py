# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The precision that each product names in programs for GPUs and TPUs, forward and backward."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from dovetail_kernels import (
    attention,
    grouped_matmul,
    linear_cross_entropy,
    linear_logprobs,
    paged_attention,
)
from dovetail_kernels.precision import describe_precision, matmul_precision, product

DEVICES = {"cuda": "NVIDIA A100-SXM4-80GB", "tpu": "TPU v5p"}
BOTH = ("blocked", "reference")


def _integers(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.int32)


def _attention(impl):
    def loss(q, k, v):
        return attention(q, k, v, causal=True, soft_cap=3.0, impl=impl).astype(jnp.float32).sum()

    return jax.grad(loss, argnums=(0, 1, 2)), [(2, 40, 4, 16), (2, 40, 2, 16), (2, 40, 2, 16)], ()


def _cross_entropy(impl):
    def loss(x, w, labels):
        return linear_cross_entropy(x, w, labels, z_loss=0.1, impl=impl).sum

    return jax.grad(loss, argnums=(0, 1)), [(30, 16), (16, 500)], (_integers(30),)


def _logprobs(impl):
    def loss(x, w, labels):
        return linear_logprobs(x, w, labels, vocab_axis=0, impl=impl).logprob.sum()

    return jax.grad(loss, argnums=(0, 1)), [(30, 16), (500, 16)], (_integers(30),)


def _grouped(impl):
    def loss(x, w, sizes):
        return grouped_matmul(x, w, sizes, impl=impl).astype(jnp.float32).sum()

    return jax.grad(loss, argnums=(0, 1)), [(40, 16), (3, 16, 24)], (_integers(3),)


def _paged(impl):
    def step(q, pages, table, lengths, starts):
        numbers = {"page_table": table, "kv_lengths": lengths, "q_starts": starts}
        return paged_attention(q, pages, **numbers, impl=impl)

    arrays = [(5, 4, 16), (6, 2, 8, 2, 16)]
    return step, arrays, (_integers(3, 2), _integers(3), _integers(4))


CALLS = [
    *((_attention, impl) for impl in BOTH),
    *((_cross_entropy, impl) for impl in BOTH),
    *((_logprobs, impl) for impl in BOTH),
    *((_grouped, impl) for impl in ("tiles", "ragged_dot", "reference")),
    *((_paged, impl) for impl in ("gather", "reference")),
]


def _precisions(call, impl, dtype, platform):
    """Returns the precisions of all products in the module lowered for a device, as JAX prints."""
    function, shapes, integers = call(impl)
    arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    device = AbstractDevice(device_kind=DEVICES[platform], num_cores=None, platform=platform)
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        traced = jax.jit(function).trace(*arrays, *integers)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    products = re.findall(r"(?:stablehlo|chlo)\.\"?(?:dot_general|ragged_dot).*", text)
    assert products
    return {
        tuple(re.findall(r"\b(DEFAULT|HIGH|HIGHEST)\b", line)) or ("DEFAULT",) * 2
        for line in products
    }


@pytest.mark.thorough
@pytest.mark.parametrize("platform", DEVICES)
@pytest.mark.parametrize("call, impl", CALLS, ids=lambda x: getattr(x, "__name__", x))
def test_every_product_of_float32_is_in_float32(call, impl, platform):
    assert _precisions(call, impl, jnp.float32, platform) == {("HIGHEST", "HIGHEST")}


@pytest.mark.parametrize("call, impl", CALLS, ids=lambda x: getattr(x, "__name__", x))
def test_products_of_bfloat16_are_the_devices_own(call, impl):
    assert _precisions(call, impl, jnp.bfloat16, "tpu") == {("DEFAULT", "DEFAULT")}


@pytest.mark.parametrize("call, impl", CALLS[::2], ids=lambda x: getattr(x, "__name__", x))
def test_a_program_may_ask_for_less(call, impl):
    with jax.default_matmul_precision("bfloat16"):
        assert _precisions(call, impl, jnp.float32, "tpu") == {("DEFAULT", "DEFAULT")}


def test_the_words_say_what_is_named():
    assert matmul_precision("float32") == jax.lax.Precision.HIGHEST
    assert describe_precision(jnp.float32) == "products in float32"
    assert describe_precision("bfloat16") == "products of bfloat16, sums in float32"
    assert describe_precision(np.float64) == "products in float64"
    with jax.default_matmul_precision("tensorfloat32"):
        assert matmul_precision("float32") is None
        asked = "products as jax.default_matmul_precision='tensorfloat32'"
        assert describe_precision("float32") == asked
        assert describe_precision("bfloat16") == "products of bfloat16, sums in float32"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_products_are_summed_in_float32(dtype):
    a = jnp.full((1, 300), 0.1, dtype)
    result = product("md,nd->mn", a, jnp.ones((1, 300), dtype), dtype=dtype)
    assert result.dtype == jnp.float32
    # 300 equal numbers: a sum in bfloat16 stops growing at 16, one in float16 errs by .01.
    np.testing.assert_allclose(result[0, 0], 300 * float(a[0, 0]), rtol=300 * 2.0**-24)

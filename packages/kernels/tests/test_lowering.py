# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every operation is lowered for devices that are absent, as dispatched there."""

import functools
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from dovetail_kernels import (
    QuantizedPages,
    adjust_logits,
    attention,
    grouped_matmul,
    linear_cross_entropy,
    pack_weights,
    paged_attention,
    paged_write,
    permute,
    quantized_matmul,
    route_tokens,
    sample,
    token_logprobs,
    unpermute,
)

DEVICES = {"cuda": "NVIDIA H100 80GB HBM3", "tpu": "TPU v5p"}


def _shape(*sizes, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(sizes, dtype)


def _integers(*sizes):
    return _shape(*sizes, dtype=jnp.int32)


def lowered(function, *shapes, platform):
    """The module that a device of `platform` would get."""
    device = AbstractDevice(device_kind=DEVICES[platform], num_cores=None, platform=platform)
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        traced = jax.jit(function).trace(*shapes)
    return traced.lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.capability("cross-entropy of a head without its logits in memory", on=("cuda", "tpu"))
@pytest.mark.parametrize("platform", DEVICES)
def test_cross_entropy_and_its_gradients(platform):
    def loss(x, w, labels):
        return linear_cross_entropy(x, w, labels, budget=2**18).sum

    shapes = _shape(300, 64), _shape(64, 5000), _integers(300)
    module = lowered(jax.grad(loss, argnums=(0, 1)), *shapes, platform=platform)
    assert "stablehlo.while" in module  # tile by tile
    assert "<300x5000x" not in module  # no logits of all rows


@pytest.mark.capability("attention over a paged cache", on="tpu")
def test_paged_attention_and_its_cache():
    def step(q, k, v, pages, slots, table, lengths, starts):
        pages = paged_write(pages, k, v, slots=slots)
        return paged_attention(q, pages, page_table=table, kv_lengths=lengths, q_starts=starts)

    new = _shape(7, 2, 64)
    shapes = _shape(7, 4, 64), new, new, _shape(9, 2, 16, 2, 64)
    numbers = _integers(7), _integers(3, 5), _integers(3), _integers(4)
    module = lowered(step, *shapes, *numbers, platform="tpu")
    assert "stablehlo.dot_general" in module


@pytest.mark.capability("attention over a paged cache of int8 and float8 codes", on=("cuda", "tpu"))
@pytest.mark.parametrize("platform", DEVICES)
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize("latent", [False, True])
def test_a_cache_of_codes(platform, dtype, latent):
    def step(q, k, pages, slots, table, lengths, starts):
        pages = paged_write(pages, k, None if latent else k, slots=slots)
        numbers = {"page_table": table, "kv_lengths": lengths, "q_starts": starts}
        width = 24 if latent else None
        return paged_attention(q, pages, **numbers, value_width=width, lse=True), pages

    codes = _shape(9, 1 if latent else 2, 16, 2, 64, dtype=jnp.dtype(dtype))
    pages = QuantizedPages(codes=codes, scales=_shape(*codes.shape[:-1], dtype=jnp.float32))
    numbers = _integers(7), _integers(3, 5), _integers(3), _integers(4)
    module = lowered(step, _shape(7, 4, 64), _shape(7, 2, 64), pages, *numbers, platform=platform)
    assert "stablehlo.dot_general" in module
    code = {"int8": "i8", "float8_e4m3fn": "f8E4M3FN"}[dtype]
    # Codes of whole pages are only ever codes: no wider copy of the cache.
    assert f"9x{codes.shape[1]}x16x2x64x{code}>" in module
    assert f"9x16x{codes.shape[2]}x2x64xf32>" not in module
    assert f"9x16x{codes.shape[2]}x2x64xbf16>" not in module


@pytest.mark.capability("routing of a mixture of experts", on=("cuda", "tpu"))
@pytest.mark.capability("grouped products of a mixture of experts", on=("cuda", "tpu"))
@pytest.mark.parametrize("platform", DEVICES)
def test_a_mixture_of_experts_and_its_gradients(platform):
    def layer(x, router, w):
        weights, experts = route_tokens(x @ router, k=2)
        rows, sizes, plan = permute(x, experts, count=8)
        return unpermute(grouped_matmul(rows, w, sizes), plan, weights=weights).sum()

    shapes = _shape(40, 16), _shape(16, 8), _shape(8, 16, 24)
    module = lowered(jax.grad(layer, argnums=(0, 1, 2)), *shapes, platform=platform)
    assert "stablehlo.sort" in module


@pytest.mark.thorough
@pytest.mark.capability("products with weights of 8 and 4 bits", on=("cuda", "tpu"))
@pytest.mark.parametrize("platform", DEVICES)
@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantized_product(bits, platform):
    weights = pack_weights(jnp.linspace(-1, 1, 256 * 96).reshape(256, 96), bits=bits)
    module = lowered(quantized_matmul, _shape(5, 256), weights, platform=platform)
    assert "stablehlo.dot_general" in module
    assert "custom_call" not in module


@pytest.mark.capability("sampling by temperature, top-k, top-p and min-p", on=("cuda", "tpu"))
@pytest.mark.parametrize("platform", DEVICES)
def test_sampling_without_a_sort(platform):
    def draw(logits, seed):
        keys = jax.random.split(jax.random.key(seed), logits.shape[0])
        return sample(logits, keys=keys, temperature=0.7, top_k=50, top_p=0.9, min_p=0.01)

    module = lowered(draw, _shape(3, 1000), _integers(), platform=platform)
    assert ("stablehlo.while" in module) == (platform == "tpu")  # on a GPU the host would wait
    assert "stablehlo.sort" not in module


@pytest.mark.thorough
def test_attention_is_exported_for_a_gpu_with_its_blocks():
    """The documented export for another device: the blocks chosen there, not those of the CPU."""

    def rows(platform, mesh):
        q = _shape(1, 1024, 8, 64)
        with jax.sharding.use_abstract_mesh(mesh):
            blocked = jax.jit(functools.partial(attention, causal=True, impl="blocked"))
            program = jax.export.export(blocked, platforms=[platform])(q, q, q)
        assert program.platforms == (platform,)
        return set(re.findall(r"tensor<(?:\d+x)*(\d+)x(?:\d+)xf32>", program.mlir_module()))

    told = AbstractDevice(device_kind=DEVICES["cuda"], num_cores=None, platform="cuda")
    there = rows("cuda", AbstractMesh((), (), abstract_device=told))
    here = rows("cpu", AbstractMesh((), ()))
    assert "1024" in there  # rows of a tile of logits
    assert "1024" not in here  # 128


@pytest.mark.capability("bias, allow-masks and penalties of logits", on=("cuda", "tpu"))
@pytest.mark.capability(
    "log-probabilities of drawn tokens, ranks and likeliest tokens", on=("cuda", "tpu")
)
@pytest.mark.parametrize("platform", DEVICES)
def test_adjusted_logits_and_log_probabilities(platform):
    def step(logits, words, ids, values, counts, tokens):
        adjusted = adjust_logits(
            logits,
            allowed=words,
            bias=(ids, values),
            output_counts=counts,
            repetition_penalty=1.1,
            presence_penalty=0.5,
        )
        return token_logprobs(adjusted, tokens, k=5)

    shapes = _shape(3, 1000), _integers(3, 32), _integers(3, 4), _shape(3, 4)
    module = lowered(step, *shapes, _integers(3, 1000), _integers(3), platform=platform)
    assert "shift_right" in module  # the bits are read in place
    assert "top_k" in module

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Norms, rotary embedding, gated units and routers, against torch and transformers in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.grouped.routing import ExpertGroups, route_tokens
from dovetail_kernels.layers.glu import glu
from dovetail_kernels.layers.norm import layer_norm, rms_norm
from dovetail_kernels.layers.rope import rope

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

RNG = np.random.default_rng(0)
X, G = RNG.standard_normal((2, 3, 7, 16)).astype(np.float32)
SCALE, BIAS = RNG.standard_normal((2, 16)).astype(np.float32)
# Sums of 16 to 21 float32 terms of order 1, in another order.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def both(ours, theirs, *arrays):
    """Values and gradients of each array are those of torch, for the cotangent G."""
    out, pull = jax.vjp(jax.jit(ours), *(jnp.asarray(a) for a in arrays))
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    expected = theirs(*tensors)
    expected.backward(torch.tensor(G[tuple(slice(n) for n in expected.shape)]))
    np.testing.assert_allclose(out, expected.detach(), **CLOSE)
    for got, tensor in zip(pull(jnp.asarray(G[: len(out)])), tensors, strict=True):
        np.testing.assert_allclose(got, tensor.grad, **CLOSE)


def test_layer_norm():
    functional = torch.nn.functional
    both(
        lambda x, scale, bias: layer_norm(x, scale, bias, eps=1e-5),
        lambda x, scale, bias: functional.layer_norm(x, (16,), scale, bias, eps=1e-5),
        *(X, SCALE, BIAS),
    )


def test_rms_norm():
    both(
        lambda x, scale: rms_norm(x, scale, eps=1e-5),
        lambda x, scale: torch.nn.functional.rms_norm(x, (16,), scale, eps=1e-5),
        *(X, SCALE),
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    "module, name, options",
    [
        ("llama", "LlamaRMSNorm", {"wide": False}),
        ("gemma2", "Gemma2RMSNorm", {"unit_offset": True}),
        ("gpt_oss", "GptOssRMSNorm", {}),
    ],
)
def test_rms_norm_of_models(module, name, options, dtype):
    path = f"transformers.models.{module}.modeling_{module}"
    layer = getattr(pytest.importorskip(path), name)(16, eps=1e-6)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(SCALE))
    layer = layer.to(getattr(torch, dtype))
    expected = layer(torch.tensor(X).to(getattr(torch, dtype))).detach().float().numpy()
    x, scale = (jnp.asarray(a, dtype) for a in (X, SCALE))
    got = np.asarray(rms_norm(x, scale, eps=1e-6, **options), np.float32)
    # The roundings are at the same places; float32 sums in another order may move one of them.
    unit = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(got, expected, rtol=max(2 * unit, 1e-6), atol=1e-6)
    if dtype == "bfloat16":
        assert (got == expected).mean() > 0.99


def test_rope_of_halves():
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    positions = np.array([[0, 1, 2, 3, 9, 100, 500]] * 3)
    inverse = (1 / np.float32(1e4) ** (np.arange(0, 4, 2, dtype=np.float32) / 4)).astype(np.float32)
    angles = torch.tensor(positions[..., None] * np.concatenate([inverse, inverse])).float()
    both(
        lambda x: rope(x.reshape(3, 7, 4, 4), jnp.asarray(positions), theta=1e4).reshape(3, 7, 16),
        lambda x: llama.apply_rotary_pos_emb(
            x.reshape(3, 7, 4, 4), x.reshape(3, 7, 4, 4), angles.cos(), angles.sin(), 2
        )[0].reshape(3, 7, 16),
        X,
    )


def test_rope_interleaved_and_partial():
    glm = pytest.importorskip("transformers.models.glm.modeling_glm")
    positions = np.array([[0, 1, 2, 3, 9, 100, 500]] * 3)
    inverse = (1 / np.float32(1e4) ** (np.arange(0, 4, 2, dtype=np.float32) / 4)).astype(np.float32)
    angles = torch.tensor(positions[..., None] * np.concatenate([inverse, inverse])).float()
    heads = X.reshape(3, 7, 2, 8)
    expected = glm.apply_rotary_pos_emb(
        torch.tensor(heads), torch.tensor(heads), angles.cos(), angles.sin(), 2
    )[0]
    got = rope(jnp.asarray(heads), positions, theta=1e4, dims=4, interleaved=True)
    np.testing.assert_allclose(got, expected, **CLOSE)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu", "sigmoid"])
def test_glu(activation):
    functional = torch.nn.functional
    functions = {
        "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
        "sigmoid": torch.sigmoid,
    }
    act = functions.get(activation) or getattr(functional, activation)
    up = X[::-1].copy()
    ours = lambda gate, up: glu(gate, up, activation=activation)  # noqa: E731
    both(ours, lambda gate, up: act(gate) * up, X, up)


def test_the_router_of_deepseek_v3():
    path = "transformers.models.deepseek_v3"
    configuration = pytest.importorskip(f"{path}.configuration_deepseek_v3")
    modeling = pytest.importorskip(f"{path}.modeling_deepseek_v3")
    config = configuration.DeepseekV3Config(
        hidden_size=16,
        n_routed_experts=12,
        num_experts_per_tok=3,
        n_group=4,
        topk_group=2,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
    )
    layer = modeling.DeepseekV3TopkRouter(config)
    kernel = torch.tensor(RNG.standard_normal((12, 16)).astype(np.float32))
    bias = torch.tensor(RNG.standard_normal(12).astype(np.float32))
    with torch.no_grad():
        layer.weight.copy_(kernel)
        layer.e_score_correction_bias.copy_(bias)
        logits, weights, experts = layer(torch.tensor(X))
    got_weights, got_experts = route_tokens(
        jnp.asarray(logits.numpy()),
        k=3,
        score="sigmoid",
        bias=jnp.asarray(bias.numpy()),
        groups=ExpertGroups(count=4, k=2),
        scale=2.5,
    )
    order = np.argsort(experts.numpy(), axis=-1)
    ours = np.argsort(got_experts, axis=-1)
    np.testing.assert_array_equal(
        np.take_along_axis(np.asarray(got_experts), ours, -1),
        np.take_along_axis(experts.numpy(), order, -1),
    )
    np.testing.assert_allclose(
        np.take_along_axis(np.asarray(got_weights), ours, -1),
        np.take_along_axis(weights.numpy(), order, -1),
        **CLOSE,
    )

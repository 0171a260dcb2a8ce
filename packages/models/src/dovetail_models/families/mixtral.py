# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Mixtral: Mistral with a mixture of experts in every layer (2401.04088).

Quirks: the router's softmax is over all experts and the chosen weights are divided by their sum;
experts are named w1, w3 and w2 (gate, up, down), or fused under `mlp.experts`.
"""

from typing import Any

from dovetail_models.config import Attention, Config, Experts, Norm
from dovetail_models.families import shape
from dovetail_models.hf.table import Family, Keys
from dovetail_models.rope_config import Rope, Scaling

_BLOCK = "model.layers.{i}.block_sparse_moe"
_APART, _ = shape.experts(
    f"{_BLOCK}.gate", {"gate": "w1", "up": "w3", "down": "w2"}, stacked=_BLOCK + ".experts.{e}"
)
_, _FUSED = shape.experts(
    "model.layers.{i}.mlp.gate", {}, stacked="model.layers.{i}.mlp.experts.{e}"
)
_REST = (*shape.OUTER, *shape.NORMS, *shape.ATTENTION)


def mixtral(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    experts: int = 8,
    top_k: int = 2,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    window: int | None = None,
    rope_theta: float = 1_000_000.0,
    rope_scaling: Scaling | None = None,
    norm_eps: float = 1e-5,
    tie: bool = False,
    max_length: int = 32_768,
    init_std: float = 0.02,
) -> Config:
    """The configuration of a Mixtral of `depth` equal layers with `experts` of `mlp` units each.

    `kv_heads` is `heads` unless given, `head_dim` is `embed // heads`.
    """
    attention = Attention(
        **shape.heads(embed, heads, kv_heads, head_dim),
        rope=Rope(theta=rope_theta, scaling=rope_scaling),
    )
    block = Experts(count=experts, top_k=top_k, hidden=mlp)
    return Config(
        family="mixtral",
        vocab_size=vocab_size,
        embed=embed,
        layers=shape.layers(attention, block, windows=[window] * depth),
        norm=Norm(eps=norm_eps),
        tie=tie,
        max_length=max_length,
        init_std=init_std,
    )


def _read(keys: Keys) -> Config:
    keys.expect("architectures", ["MixtralForCausalLM"])
    keys.expect("hidden_act", "silu")
    # Noise on the router's input while training.
    keys.expect("router_jitter_noise", 0.0)
    return mixtral(
        **shape.read_shape(keys, theta=1e6, eps=1e-5, max_length=131_072),
        experts=shape.count(keys, "num_local_experts"),
        top_k=shape.count(keys, "num_experts_per_tok"),
        window=shape.count(keys, "sliding_window", required=False),
    )


def _write(config: Config) -> dict[str, Any]:
    block = config.layers[0].mlp
    assert isinstance(block, Experts)
    return {
        **shape.write_shape(config, architecture="MixtralForCausalLM", hidden=block.hidden),
        "hidden_act": "silu",
        "num_local_experts": block.count,
        "num_experts_per_tok": block.top_k,
        "router_jitter_noise": 0.0,
        "sliding_window": shape.first_window(config),
    }


FAMILY = Family(
    read=_read,
    write=_write,
    table=(*_REST, *_APART),
    layouts=((*_REST, *_FUSED),),
    inert=shape.INERT | shape.INERT_EXPERTS,
    tied=shape.TIED,
)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Mixtral: Mistral with a mixture of experts in every layer (2401.04088).

Quirks: The router's softmax runs over all experts, and the selected weights are divided by their
sum. Experts are named w1, w3 and w2 (gate, up, down), or fused under `mlp.experts`.
"""

from typing import Any

from dovetail_models.config import Attention, Config, Norm
from dovetail_models.families import shape
from dovetail_models.hf.table import Family, Keys
from dovetail_models.layer_config import Experts
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
    """Returns the configuration of a Mixtral with `depth` equal layers.

    Args:
        vocab_size: Number of token ids.
        embed: Width of the residual stream.
        depth: Number of layers.
        heads: Query heads per layer.
        mlp: Hidden units of an expert.
        experts: Experts per layer.
        top_k: Experts per token.
        kv_heads: Key-value heads per layer; a divisor of `heads`. None: `heads`.
        head_dim: Width of a head; even. None: `embed // heads`.
        window: Number of positions a query sees, itself included. None: all.
        rope_theta: Base of the RoPE frequencies.
        rope_scaling: Scaling of the RoPE frequencies (see `Rope`). None: no scaling.
        norm_eps: Epsilon of the norms.
        tie: Share the embedding with the output head.
        max_length: Context length of the trained model, in tokens. Nothing is cut to it.
        init_std: Standard deviation of fresh weights.

    Raises:
        ValueError: A size, rate or window is not positive, `kv_heads` does not divide `heads`,
            `top_k` exceeds `experts`, `head_dim` is odd, or it is None and `heads` does not divide
            `embed`.

    Example:

        >>> config = mixtral(vocab_size=64, embed=16, depth=2, heads=4, mlp=32)
        >>> config.layers[0].mlp.count, config.layers[0].mlp.top_k
        (8, 2)
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
    keys.expect("architectures", ["MixtralForCausalLM"], ["MixtralModel"])
    keys.expect("hidden_act", "silu")
    # Noise on the router's input while training.
    keys.expect("router_jitter_noise", 0.0)
    config = mixtral(
        **shape.read_shape(keys, theta=1e6, eps=1e-5, max_length=131_072),
        experts=shape.count(keys, "num_local_experts"),
        top_k=shape.count(keys, "num_experts_per_tok"),
        window=shape.read_window(keys, default=None),
    )
    return shape.all_full(keys, config)


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
    tied=shape.TIED,
    blocks=(Experts,),
)

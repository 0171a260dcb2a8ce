# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Qwen 3 with a mixture of experts: Qwen 3's attention and 128 small experts (2505.09388).

Quirks: The selected weights are divided by their sum only with `norm_topk_prob`. The layers in
`mlp_only_layers` are dense, and so are all but each `decoder_sparse_step`-th. Experts are stored
apart or fused.
"""

import dataclasses
from typing import Any

from dovetail_models.config import Attention, Config, Norm
from dovetail_models.families import shape
from dovetail_models.hf.table import Family, Keys
from dovetail_models.layer_config import Experts, Mlp
from dovetail_models.rope_config import Rope, Scaling

_NAMES = {name: f"{name}_proj" for name in ("gate", "up", "down")}
_APART, _FUSED = shape.experts(
    "model.layers.{i}.mlp.gate", _NAMES, stacked="model.layers.{i}.mlp.experts.{e}"
)
_REST = (*shape.OUTER, *shape.NORMS, *shape.ATTENTION, *shape.QK_NORMS)


def qwen3_moe(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    experts: int = 128,
    top_k: int = 8,
    normalise: bool = True,
    dense: tuple[int, ...] = (),
    dense_mlp: int | None = None,
    kv_heads: int | None = None,
    head_dim: int | None = 128,
    window: int | None = None,
    rope_theta: float = 1_000_000.0,
    rope_scaling: Scaling | None = None,
    norm_eps: float = 1e-6,
    tie: bool = False,
    attention_bias: bool = False,
    max_length: int = 32_768,
    init_std: float = 0.02,
) -> Config:
    """Returns the configuration of a Qwen 3 mixture of experts with `depth` layers.

    Args:
        vocab_size: Number of token ids.
        embed: Width of the residual stream.
        depth: Number of layers.
        heads: Query heads per layer.
        mlp: Hidden units of an expert.
        experts: Experts per layer.
        top_k: Experts per token.
        normalise: Divide the selected weights by their sum.
        dense: Indices of layers with a dense feed-forward block.
        dense_mlp: Hidden units of a dense block. Required with `dense`.
        kv_heads: Key-value heads per layer; a divisor of `heads`. None: `heads`.
        head_dim: Width of a head; even. None: `embed // heads`.
        window: Number of positions a query sees, itself included. None: all.
        rope_theta: Base of the RoPE frequencies.
        rope_scaling: Scaling of the RoPE frequencies (see `Rope`). None: no scaling.
        norm_eps: Epsilon of the norms.
        tie: Share the embedding with the output head.
        attention_bias: Add biases to the q, k, v and output projections.
        max_length: Context length of the trained model, in tokens. Nothing is cut to it.
        init_std: Standard deviation of fresh weights.

    Raises:
        ValueError: A size, rate or window is not positive, `kv_heads` does not divide `heads`,
            `head_dim` is odd, `top_k` exceeds `experts`, or `dense` comes without `dense_mlp`.

    Example:

        >>> sizes = {"vocab_size": 64, "embed": 16, "depth": 2, "heads": 4, "mlp": 32}
        >>> config = qwen3_moe(dense=(0,), dense_mlp=64, **sizes)
        >>> [type(layer.mlp).__name__ for layer in config.layers]
        ['Mlp', 'Experts']
    """
    attention = Attention(
        **shape.heads(embed, heads, kv_heads, head_dim),
        rope=Rope(theta=rope_theta, scaling=rope_scaling),
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        qk_norm=True,
    )
    if dense and dense_mlp is None:
        raise ValueError(
            f"Dense layers need a width, got dense={dense}, dense_mlp=None. Pass dense_mlp=."
        )
    block = Experts(count=experts, top_k=top_k, hidden=mlp, normalise=normalise)
    layers = shape.layers(attention, block, windows=[window] * depth)
    return Config(
        family="qwen3_moe",
        vocab_size=vocab_size,
        embed=embed,
        layers=tuple(
            dataclasses.replace(la, mlp=Mlp(hidden=dense_mlp or mlp)) if i in dense else la
            for i, la in enumerate(layers)
        ),
        norm=Norm(eps=norm_eps),
        tie=tie,
        max_length=max_length,
        init_std=init_std,
    )


def _read(keys: Keys) -> Config:
    keys.expect("architectures", ["Qwen3MoeForCausalLM"], ["Qwen3MoeModel"])
    keys.expect("use_qk_norm", True)
    keys.expect("hidden_act", "silu")
    sizes = shape.read_shape(keys, max_length=32_768, head_dim=keys.take("head_dim"))
    dense_mlp = sizes.pop("mlp")
    step = shape.count(keys, "decoder_sparse_step", required=False) or 1
    listed = keys.take("mlp_only_layers", [])
    dense = tuple(i for i in range(sizes["depth"]) if i in listed or (i + 1) % step)
    window = shape.read_window(keys, default=4096)
    # transformers 4 wrote num_experts, 5 writes num_local_experts.
    old = shape.count(keys, "num_experts", required=False)
    count = shape.count(keys, "num_local_experts", required=old is None) or old
    if old not in (None, count):
        raise ValueError(
            "num_experts and num_local_experts must be the same, got "
            f"num_experts={old}, num_local_experts={count}. Remove the wrong one from config.json."
        )
    config = qwen3_moe(
        **sizes,
        mlp=shape.count(keys, "moe_intermediate_size"),
        experts=count,
        top_k=shape.count(keys, "num_experts_per_tok"),
        normalise=keys.take("norm_topk_prob", False),
        dense=dense,
        dense_mlp=dense_mlp,
        window=window if keys.take("use_sliding_window", False) else None,
        attention_bias=keys.take("attention_bias", False),
    )
    return shape.all_full(keys, config)


def _write(config: Config) -> dict[str, Any]:
    blocks = [la.mlp for la in config.layers]
    block = shape.first_experts(config)
    wide = next((b.hidden for b in blocks if isinstance(b, Mlp)), block.hidden)
    window, attention = shape.first_window(config), config.layers[0].attention
    assert isinstance(attention, Attention)
    return {
        **shape.write_shape(config, architecture="Qwen3MoeForCausalLM", hidden=wide),
        "hidden_act": "silu",
        "attention_bias": attention.qkv_bias,
        "num_experts": block.count,
        "num_local_experts": block.count,
        "num_experts_per_tok": block.top_k,
        "moe_intermediate_size": block.hidden,
        "norm_topk_prob": block.normalise,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [i for i, b in enumerate(blocks) if isinstance(b, Mlp)],
        "use_sliding_window": window is not None,
        "sliding_window": window,
    }


FAMILY = Family(
    read=_read,
    write=_write,
    table=(*_REST, *shape.MLP, *_APART),
    layouts=((*_REST, *shape.MLP, *_FUSED),),
    tied=shape.TIED,
    blocks=(Mlp, Experts),
)

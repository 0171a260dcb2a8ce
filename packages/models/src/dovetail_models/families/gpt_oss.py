# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""gpt-oss: attention with sinks, a window in every other layer, and experts (2508.10925).

Quirks: A learned score per head joins the denominator of its softmax. Projections, router and
experts have biases. The gate is clamped (`ClampedGlu`). Gate and up alternate in one tensor, stored
[in, out]. Experts may be MXFP4. YaRN's ramp is not cut to whole pairs. Norms multiply in float32.
"""

from typing import Any

from dovetail_models.config import Attention, Config, Norm
from dovetail_models.families import shape
from dovetail_models.hf.ops import Identity, Interleaved
from dovetail_models.hf.rope import describe_scaling
from dovetail_models.hf.table import Family, Keys, Row, Table
from dovetail_models.layer_config import ClampedGlu, Experts
from dovetail_models.rope_config import Rope, Scaling, YarnScaling

_SAME = Identity()
_THEIRS, _OURS = "model.layers.{i}.", "layers.{i}."
_EXPERTS: Table = (
    *shape.linear(f"{_THEIRS}mlp.router", f"{_OURS}mlp.router"),
    *(
        Row(f"{_THEIRS}mlp.experts.gate_up_proj{end}", f"{_OURS}mlp.experts.{name}.{leaf}", op)
        for name, op in (("gate", Interleaved(0, 2, -1)), ("up", Interleaved(1, 2, -1)))
        for end, leaf in (("", "kernel"), ("_bias", "bias"))
    ),
    Row(f"{_THEIRS}mlp.experts.down_proj", f"{_OURS}mlp.experts.down.kernel", _SAME),
    Row(f"{_THEIRS}mlp.experts.down_proj_bias", f"{_OURS}mlp.experts.down.bias", _SAME),
)
_SINKS = Row(f"{_THEIRS}self_attn.sinks", f"{_OURS}attn.sinks", _SAME)
GATE = ClampedGlu(limit=7.0, alpha=1.702)
_WINDOW = 128
YARN = YarnScaling(factor=32.0, original_length=4096, truncate=False)
# That of a config.json without RoPE keys.
_SCALED = describe_scaling(Rope(theta=150_000.0, scaling=YARN))


def gpt_oss(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    experts: int = 32,
    top_k: int = 4,
    kv_heads: int | None = None,
    head_dim: int = 64,
    window: int | None = 128,
    gate: ClampedGlu = GATE,
    attention_bias: bool = True,
    rope_theta: float = 150_000.0,
    rope_scaling: Scaling | None = YARN,
    norm_eps: float = 1e-5,
    tie: bool = False,
    max_length: int = 131_072,
    init_std: float = 0.02,
) -> Config:
    """Returns the configuration of a gpt-oss with `depth` layers.

    Every other layer has a window, from the first on.

    Args:
        vocab_size: Number of token ids.
        embed: Width of the residual stream.
        depth: Number of layers.
        heads: Query heads per layer.
        mlp: Hidden units of an expert.
        experts: Experts per layer.
        top_k: Experts per token.
        kv_heads: Key-value heads per layer; a divisor of `heads`. None: `heads`.
        head_dim: Width of a head; even.
        window: Number of positions a query sees in layers 0, 2, 4 and so on. None: all.
        gate: Clamped gate of the experts.
        attention_bias: Add biases to the q, k, v and output projections.
        rope_theta: Base of the RoPE frequencies.
        rope_scaling: Scaling of the RoPE frequencies. None: no scaling.
        norm_eps: Epsilon of the norms.
        tie: Share the embedding with the output head.
        max_length: Context length of the trained model, in tokens. Nothing is cut to it.
        init_std: Standard deviation of fresh weights.

    Raises:
        ValueError: A size, rate or window is not positive, `kv_heads` does not divide `heads`,
            `top_k` exceeds `experts`, or `head_dim` is odd.

    Example:

        >>> config = gpt_oss(vocab_size=64, embed=16, depth=2, heads=4, mlp=32)
        >>> [layer.attention.window for layer in config.layers]
        [128, None]
    """
    attention = Attention(
        **shape.heads(embed, heads, kv_heads, head_dim),
        rope=Rope(theta=rope_theta, scaling=rope_scaling),
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        sinks=True,
    )
    block = Experts(
        count=experts, top_k=top_k, hidden=mlp, activation=gate, bias=True, router_bias=True
    )
    windows = [window if i % 2 == 0 else None for i in range(depth)]
    return Config(
        family="gpt_oss",
        vocab_size=vocab_size,
        embed=embed,
        layers=shape.layers(attention, block, windows=windows),
        norm=Norm(eps=norm_eps, wide=True),
        tie=tie,
        max_length=max_length,
        init_std=init_std,
    )


def _read(keys: Keys) -> Config:
    keys.expect("architectures", ["GptOssForCausalLM"], ["GptOssModel"])
    keys.expect("hidden_act", "silu")
    window = shape.read_window(keys, default=_WINDOW)
    # The published files hold it twice.
    keys.take("experts_per_token")
    gate = ClampedGlu(limit=keys.take("swiglu_limit", 7.0), alpha=keys.take("swiglu_alpha", 1.702))
    config = gpt_oss(
        **shape.read_shape(
            keys, theta=150_000.0, scaling=_SCALED, eps=1e-5, max_length=131_072, head_dim=64
        ),
        experts=shape.count(keys, "num_local_experts"),
        top_k=shape.count(keys, "num_experts_per_tok"),
        window=window,
        gate=gate,
        attention_bias=keys.take("attention_bias", True),
    )
    return shape.with_kinds(keys, config, window=window)


def _write(config: Config) -> dict[str, Any]:
    layer = config.layers[0]
    attention, block = layer.attention, layer.mlp
    assert isinstance(attention, Attention)
    assert isinstance(block, Experts)
    # Another activation is not read back, and so refused.
    gate = block.activation if isinstance(block.activation, ClampedGlu) else GATE
    return {
        **shape.write_shape(config, architecture="GptOssForCausalLM", hidden=block.hidden),
        "hidden_act": "silu",
        "attention_bias": attention.qkv_bias,
        "num_local_experts": block.count,
        "num_experts_per_tok": block.top_k,
        "experts_per_token": block.top_k,
        "swiglu_limit": gate.limit,
        "swiglu_alpha": gate.alpha,
        # transformers refuses null, also without a windowed layer.
        "sliding_window": shape.first_window(config) or _WINDOW,
        "layer_types": shape.kinds(config),
    }


FAMILY = Family(
    read=_read,
    write=_write,
    table=(*shape.OUTER, *shape.NORMS, *shape.ATTENTION, _SINKS, *_EXPERTS),
    tied=shape.TIED,
    blocks=(Experts,),
)

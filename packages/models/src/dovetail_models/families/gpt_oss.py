# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""gpt-oss: attention with sinks, a window in every other layer, and experts (2508.10925).

Quirks: A learned score per head joins the denominator of its softmax. Projections, router and
experts have biases. The gate is clamped (`ClampedGlu`). Gate and up alternate in one tensor, stored
[in, out]. Experts may be MXFP4. YaRN's ramp is not cut to whole pairs. Norms multiply in float32.
"""

from typing import Any

from dovetail_models.config.decoder import Config, Norm
from dovetail_models.config.layer import ClampedGlu, Experts
from dovetail_models.config.rope import Rope, Scaling, YarnScaling
from dovetail_models.families import shape
from dovetail_models.tables.config_json import Keys, Values
from dovetail_models.tables.ops import Identity, Interleaved
from dovetail_models.tables.rope import describe_scaling
from dovetail_models.tables.table import Family, Row, Table, linear

_SAME = Identity()
_THEIRS, _OURS = "model.layers.{i}.", "layers.{i}."
_EXPERTS: Table = (
    *linear(f"{_THEIRS}mlp.router", f"{_OURS}mlp.router"),
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
YARN = YarnScaling(factor=32.0, original_length=4096, truncate=False)
_OWN: dict[str, Any] = {"norm": Norm(wide=True), "sinks": True, "expert_bias": True}
_ABSENT: dict[str, Any] = {
    "max_length": 131_072,
    "head_dim": 64,
    "window": 128,
    "norm_eps": 1e-5,
    "attention_bias": True,
    "rope_theta": 150_000.0,
    "rope_scaling": describe_scaling(Rope(theta=150_000.0, scaling=YARN)),
}


@shape.builder
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
        mlp: Hidden units of an expert.
        head_dim: Width of a head; even.
        window: Number of positions a query sees in layers 0, 2, 4 and so on. None: all.
        rope_scaling: Scaling of the RoPE frequencies. None: no scaling.

    Raises:
        ValueError: A size, rate or window is not positive, `kv_heads` does not divide `heads`,
            `top_k` exceeds `experts`, or `head_dim` is odd.

    Example:

        >>> config = gpt_oss(vocab_size=64, embed=16, depth=2, heads=4, mlp=32)
        >>> [layer.attention.window for layer in config.layers]
        [128, None]
    """
    return shape.Shape(family="gpt_oss", pattern=2, **_OWN, **locals()).config()


def _more(keys: Keys, values: Values) -> Values:
    limit, alpha = keys.take("swiglu_limit", GATE.limit), keys.take("swiglu_alpha", GATE.alpha)
    return {"gate": ClampedGlu(limit=limit, alpha=alpha)}


def _also(config: Config) -> Values:
    block = shape.first_experts(config)
    # Another activation is not read back, and so refused.
    gate = block.activation if isinstance(block.activation, ClampedGlu) else GATE
    return {
        # The published files hold it twice.
        "experts_per_token": block.top_k,
        "swiglu_limit": gate.limit,
        "swiglu_alpha": gate.alpha,
        # transformers refuses null, also without a windowed layer.
        "sliding_window": shape.first_window(config) or _ABSENT["window"],
        "layer_types": shape.kinds(config),
    }


FAMILY = Family(
    config_json=shape.decoder_json(
        builder=gpt_oss,
        fixed=shape.architectures("GptOss") | shape.SILU,
        ignored=("experts_per_token",),
        absent=_ABSENT,
        more=_more,
        then=shape.with_kinds,
        also=_also,
    ),
    table=(*shape.OUTER, *shape.NORMS, *shape.ATTENTION, _SINKS, *_EXPERTS),
    tied=shape.TIED,
    blocks=(Experts,),
)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Gemma 2: Gemma with norms before and after each block, soft caps, and a window in every other
layer (2408.00118).

Quirks: Each layer has four norms. Scores are capped at 50 and logits at 30 by tanh. Scores are
scaled by `query_pre_attn_scalar ** -0.5`, not by the width of a head. The even layers have a
window.
"""

from typing import Any

from dovetail_models.config import Attention, Config
from dovetail_models.families import shape
from dovetail_models.families.gemma import GELU, norm
from dovetail_models.hf.rope import read_rope
from dovetail_models.hf.table import Family, Keys, Table
from dovetail_models.layer_config import Mlp
from dovetail_models.rope_config import Rope, Scaling

_WINDOW = 4096  # without a key in config.json
_THEIRS, _OURS = "model.layers.{i}.", "layers.{i}."
_NORMS: Table = tuple(
    row
    for theirs, ours in {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "attn_post_norm",
        "pre_feedforward_layernorm": "mlp_norm",
        "post_feedforward_layernorm": "mlp_post_norm",
    }.items()
    for row in shape.norm(_THEIRS + theirs, _OURS + ours)
)
TABLE: Table = (*shape.OUTER, *_NORMS, *shape.ATTENTION, *shape.MLP)


def gemma2(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    kv_heads: int | None = None,
    head_dim: int = 256,
    query_scalar: float = 256.0,
    window: int | None = 4096,
    score_cap: float | None = 50.0,
    logit_cap: float | None = 30.0,
    rope_theta: float = 10_000.0,
    rope_scaling: Scaling | None = None,
    norm_eps: float = 1e-6,
    tie: bool = True,
    max_length: int = 8192,
    init_std: float = 0.02,
) -> Config:
    """Returns the configuration of a Gemma 2 with `depth` layers.

    Every other layer has a window, from the first on.

    Args:
        vocab_size: Number of token ids.
        embed: Width of the residual stream.
        depth: Number of layers.
        heads: Query heads per layer.
        mlp: Hidden units of a feed-forward block.
        kv_heads: Key-value heads per layer; a divisor of `heads`. None: `heads`.
        head_dim: Width of a head; even.
        query_scalar: Scores are divided by its square root.
        window: Number of positions a query sees in layers 0, 2, 4 and so on. None: all.
        score_cap: Soft cap c of the scores: `c tanh(scores / c)`. None: no cap.
        logit_cap: Soft cap of the logits. None: no cap.
        rope_theta: Base of the RoPE frequencies.
        rope_scaling: Scaling of the RoPE frequencies (see `Rope`). None: no scaling.
        norm_eps: Epsilon of the norms.
        tie: Share the embedding with the output head.
        max_length: Context length of the trained model, in tokens. Nothing is cut to it.
        init_std: Standard deviation of fresh weights.

    Raises:
        ValueError: A size, rate, window or cap is not positive, `kv_heads` does not divide `heads`,
            or `head_dim` is odd.

    Example:

        >>> config = gemma2(vocab_size=64, embed=16, depth=2, heads=4, mlp=32, head_dim=8)
        >>> [layer.attention.window for layer in config.layers]
        [4096, None]
    """
    attention = Attention(
        **shape.heads(embed, heads, kv_heads, head_dim),
        rope=Rope(theta=rope_theta, scaling=rope_scaling),
        soft_cap=score_cap,
        scale=query_scalar**-0.5,
    )
    windows = [window if i % 2 == 0 else None for i in range(depth)]
    block = Mlp(hidden=mlp, activation="gelu_tanh")
    return Config(
        family="gemma2",
        vocab_size=vocab_size,
        embed=embed,
        layers=shape.layers(attention, block, windows=windows, norms="sandwich"),
        norm=norm(norm_eps),
        tie=tie,
        max_length=max_length,
        embed_scale=embed**0.5,
        soft_cap=logit_cap,
        init_std=init_std,
    )


def read_sizes(keys: Keys, *, max_length: int, logit_cap: float | None) -> dict[str, Any]:
    """Reads the builder arguments common to Gemma 2 and 3 from config.json.

    Args:
        keys: The keys of config.json.
        max_length: Default of `max_position_embeddings`.
        logit_cap: Default of `final_logit_softcapping`.

    Returns:
        Arguments of the builder by name.

    Raises:
        ValueError: A key is missing or has a value with no matching module.
    """
    keys.expect("hidden_activation", GELU)
    keys.expect("hidden_act", GELU, "gelu")
    keys.expect("attention_bias", False)
    keys.expect("use_bidirectional_attention", False)
    return {
        **shape.read_sizes(keys, tie=True, max_length=max_length, head_dim=256),
        "query_scalar": float(keys.take("query_pre_attn_scalar", 256)),
        "window": shape.read_window(keys, default=_WINDOW),
        "logit_cap": _cap(keys, "final_logit_softcapping", logit_cap),
    }


def _cap(keys: Keys, name: str, absent: float | None) -> float | None:
    """Reads a cap: None for null, and `absent` for a missing key."""
    return keys.take(name) if name in keys else absent


def write_sizes(config: Config, *, architecture: str) -> dict[str, Any]:
    """Returns the config.json keys common to Gemma 2 and 3."""
    layer = config.layers[0]
    assert isinstance(layer.attention, Attention)
    scale = layer.attention.scale or layer.attention.head_dim**-0.5
    return {
        **shape.write_shape(config, architecture=architecture, hidden=layer.mlp.hidden),
        "hidden_activation": GELU,
        "attention_bias": False,
        "use_bidirectional_attention": None,
        # Rounding undoes the error of the two powers.
        "query_pre_attn_scalar": _whole(round(scale**-2, 6)),
        # transformers refuses null, also without a windowed layer.
        "sliding_window": shape.first_window(config) or _WINDOW,
        "final_logit_softcapping": config.soft_cap,
        "layer_types": shape.kinds(config),
    }


def _whole(number: float) -> float | int:
    return int(number) if number == int(number) else number


def _read(keys: Keys) -> Config:
    keys.expect("architectures", ["Gemma2ForCausalLM"], ["Gemma2Model"])
    sizes = read_sizes(keys, max_length=8192, logit_cap=30.0)
    rope = read_rope(keys, max_length=sizes["max_length"], width=sizes["head_dim"])
    ropes = {"rope_theta": rope.theta, "rope_scaling": rope.scaling}
    # The first files hold the window twice.
    keys.expect("sliding_window_size", sizes["window"])
    sizes["score_cap"] = _cap(keys, "attn_logit_softcapping", 50.0)
    return shape.with_kinds(keys, gemma2(**sizes, **ropes), window=sizes["window"])


def _write(config: Config) -> dict[str, Any]:
    keys = write_sizes(config, architecture="Gemma2ForCausalLM")
    attention = config.layers[0].attention
    assert isinstance(attention, Attention)
    return keys | {"attn_logit_softcapping": attention.soft_cap}


FAMILY = Family(
    read=_read,
    write=_write,
    table=TABLE,
    tied=shape.TIED,
)

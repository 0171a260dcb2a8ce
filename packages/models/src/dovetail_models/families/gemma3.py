# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Gemma 3, text: Gemma 2 without caps, with normalised heads and five windowed layers per full one
(2503.19786).

Quirks: q and k are normalised before RoPE. Windowed layers have a RoPE base of 10,000, full layers
1,000,000; only the latter is scaled. Of six layers the last is full. transformers reads
`attn_logit_softcapping` and caps no score, so a value there has no effect here either.
"""

from dovetail_models.config.decoder import Attention, Config
from dovetail_models.config.rope import Rope, Scaling
from dovetail_models.families import gemma2, shape
from dovetail_models.families.gemma import FIXED
from dovetail_models.families.gemma2 import SANDWICH
from dovetail_models.tables.config_json import Keys, Values, count
from dovetail_models.tables.rope import Outer, describe_scaling, parse_rope
from dovetail_models.tables.table import Family

_INERT = frozenset({"_sliding_window_pattern", "attn_logit_softcapping"})


@shape.builder
def gemma3(
    *,
    vocab_size: int,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    kv_heads: int | None = None,
    head_dim: int = 256,
    query_scalar: float = 256.0,
    window: int | None = 1024,
    pattern: int = 6,
    score_cap: float | None = None,
    logit_cap: float | None = None,
    rope_theta: float = 1_000_000.0,
    rope_scaling: Scaling | None = None,
    local_theta: float = 10_000.0,
    norm_eps: float = 1e-6,
    tie: bool = True,
    max_length: int = 131_072,
    init_std: float = 0.02,
) -> Config:
    """Returns the configuration of a Gemma 3 text model with `depth` layers.

    Args:
        head_dim: Width of a head; even.
        window: Number of positions a query sees in windowed layers. None: all.
        score_cap: Soft cap c of the scores: `c tanh(scores / c)`. None: no cap. transformers
            cannot compute one in Gemma 3, so `save` refuses the model.
        rope_theta: Base of the RoPE frequencies in full layers.
        rope_scaling: Scaling of the RoPE frequencies in full layers. None: no scaling.

    Raises:
        ValueError: A size, rate, window or cap is not positive, `kv_heads` does not divide `heads`,
            or `head_dim` is odd.

    Example:

        >>> config = gemma3(vocab_size=64, embed=16, depth=2, heads=4, mlp=32, pattern=2)
        >>> [layer.attention.window for layer in config.layers]
        [1024, None]
    """
    return shape.Shape(family="gemma3_text", qk_norm=True, **SANDWICH, **locals()).config()


def _more(keys: Keys, values: Values) -> Values:
    full = {"rope_theta": keys.take("rope_theta", 1e6), **(keys.take("rope_scaling") or {})}
    local = {"rope_theta": keys.take("rope_local_base_freq", 1e4)}
    new = keys.take("rope_parameters") or {}
    outer = Outer(max_length=values["max_length"], width=values["head_dim"])
    # transformers looks for the flag outside the mapping of a kind of layer, and never finds it.
    full = {**full, **new.get(shape.FULL, {}), "truncate": None}
    rope = parse_rope(full, outer)
    local_rope = parse_rope(local | new.get(shape.SLIDING, {}), outer)
    if local_rope.scaling is not None:
        raise ValueError(
            "RoPE of the windowed layers must not be stretched, got rope_parameters="
            f"{new}. No module here computes it; use the library that wrote the file."
        )
    return {
        "rope_theta": rope.theta,
        "rope_scaling": rope.scaling,
        "local_theta": local_rope.theta,
        "pattern": count(keys, "sliding_window_pattern", required=False) or 6,
    }


def _then(keys: Keys, config: Config, values: Values) -> Config:
    """Returns `config` with the windows of `layer_types`, and RoPE by window."""
    full = Rope(theta=values["rope_theta"], scaling=values["rope_scaling"])
    local = Rope(theta=values["local_theta"])
    config = shape.with_kinds(keys, config, values)
    ropes = [{"rope": local if la.attention.window else full} for la in config.layers]
    return shape.with_attention(config, ropes)


def _also(config: Config) -> Values:
    kinds = [la.attention for la in config.layers if isinstance(la.attention, Attention)]
    caps = [kind.soft_cap for kind in kinds if kind.soft_cap is not None]
    if caps:
        raise ValueError(
            "The files of a gemma3_text cannot cap the scores, since transformers ignores the "
            f"key, got score_cap={caps[0]}. Build the model with score_cap=None, or save "
            "nnx.state(model) with dovetail_checkpoint.Store or Orbax."
        )
    ropes = {la.attention.window is None: la.attention.rope for la in config.layers}
    # Without layers of a kind, write its published base.
    full = ropes.get(True) or Rope(theta=1e6)
    local = ropes.get(False) or Rope(theta=1e4)
    scaling = describe_scaling(full)
    return {
        **gemma2.write_windows(config),
        "rope_theta": full.theta,
        "rope_scaling": scaling,
        "rope_local_base_freq": local.theta,
        "use_bidirectional_attention": False,
        "rope_parameters": {
            shape.FULL: {"rope_theta": full.theta, **(scaling or {"rope_type": "default"})},
            shape.SLIDING: {"rope_theta": local.theta, "rope_type": "default"},
        },
    }


FAMILY = Family(
    config_json=shape.decoder_json(
        builder=gemma3,
        fixed=shape.architectures("Gemma3", ["Gemma3TextModel"]) | gemma2.ACTIVATION | FIXED,
        expected=gemma2.EXPECTED,
        unread=("score_cap", "rope_theta"),
        absent={**gemma2.ABSENT, "max_length": 131_072},
        more=_more,
        then=_then,
        also=_also,
    ),
    table=(*gemma2.TABLE, *shape.QK_NORMS),
    inert=_INERT,
    tied=shape.TIED,
)

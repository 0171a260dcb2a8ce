# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Gemma 2: Gemma with norms before and after each block, soft caps, and a window in every other
layer (2408.00118).

Quirks: Each layer has four norms. Scores are capped at 50 and logits at 30 by tanh. Scores are
scaled by `query_pre_attn_scalar ** -0.5`, not by the width of a head. The even layers have a
window.
"""

from typing import Any

from dovetail_models.config.decoder import Config
from dovetail_models.config.rope import Scaling
from dovetail_models.families import shape
from dovetail_models.families.gemma import FIXED, GELU, GEMMA
from dovetail_models.tables.config_json import Keys, Values
from dovetail_models.tables.table import Family, in_layers, norm

_WINDOW = 4096  # without a key in config.json
_NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "attn_post_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "mlp_post_norm",
}
TABLE = (
    *shape.OUTER,
    *in_layers(_NORMS, row=norm),
    *shape.ATTENTION,
    *shape.MLP,
)
SANDWICH: dict[str, Any] = {**GEMMA, "norms": "sandwich"}
# config.json of Gemma 2 and 3.
ACTIVATION = {"hidden_activation": (GELU,)}
EXPECTED = {"hidden_act": (GELU, "gelu"), "use_bidirectional_attention": (False,)}
ABSENT = {"head_dim": 256, "tie": True, "window": _WINDOW}


@shape.builder
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
        head_dim: Width of a head; even.
        window: Number of positions a query sees in layers 0, 2, 4 and so on. None: all.

    Raises:
        ValueError: A size, rate, window or cap is not positive, `kv_heads` does not divide `heads`,
            or `head_dim` is odd.

    Example:

        >>> config = gemma2(vocab_size=64, embed=16, depth=2, heads=4, mlp=32, head_dim=8)
        >>> [layer.attention.window for layer in config.layers]
        [4096, None]
    """
    return shape.Shape(family="gemma2", pattern=2, **SANDWICH, **locals()).config()


def write_windows(config: Config) -> Values:
    """Returns the config.json keys of windows, in Gemma 2 and 3."""
    return {
        # transformers refuses null, also without a windowed layer.
        "sliding_window": shape.first_window(config) or _WINDOW,
        "layer_types": shape.kinds(config),
        "use_bidirectional_attention": None,
    }


def _then(keys: Keys, config: Config, values: Values) -> Config:
    # The first files hold the window twice.
    keys.expect("sliding_window_size", values["window"])
    return shape.with_kinds(keys, config, values)


FAMILY = Family(
    config_json=shape.decoder_json(
        builder=gemma2,
        fixed=shape.architectures("Gemma2") | ACTIVATION | FIXED,
        expected=EXPECTED,
        absent={**ABSENT, "max_length": 8192, "score_cap": 50.0, "logit_cap": 30.0},
        then=_then,
        also=write_windows,
    ),
    table=TABLE,
    tied=shape.TIED,
)

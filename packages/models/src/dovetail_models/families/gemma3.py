# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Gemma 3, text: Gemma 2 without caps, with normalised heads and five windowed layers per full one
(2503.19786).

Quirks: q and k are normalised before RoPE. Windowed layers have a RoPE base of 10,000, full layers
1,000,000; only the latter is scaled. Of six layers the last is full. transformers reads
`attn_logit_softcapping` and caps no score, so a value there has no effect here either.
"""

import dataclasses
from typing import Any

from dovetail_models.config import Attention, Config
from dovetail_models.families import shape
from dovetail_models.families.gemma import norm
from dovetail_models.families.gemma2 import TABLE, read_sizes, write_sizes
from dovetail_models.hf.rope import Outer, describe_scaling, parse_rope
from dovetail_models.hf.table import Family, Keys
from dovetail_models.layer_config import Mlp
from dovetail_models.rope_config import Rope, Scaling

_INERT = frozenset({"_sliding_window_pattern", "attn_logit_softcapping"})


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
        vocab_size: Number of token ids.
        embed: Width of the residual stream.
        depth: Number of layers.
        heads: Query heads per layer.
        mlp: Hidden units of a feed-forward block.
        kv_heads: Key-value heads per layer; a divisor of `heads`. None: `heads`.
        head_dim: Width of a head; even.
        query_scalar: Scores are divided by its square root.
        window: Number of positions a query sees in windowed layers. None: all.
        pattern: Every `pattern`-th layer is full, the others are windowed.
        score_cap: Soft cap c of the scores: `c tanh(scores / c)`. None: no cap. transformers
            cannot compute one in Gemma 3, so `save` refuses the model.
        logit_cap: Soft cap of the logits. None: no cap.
        rope_theta: Base of the RoPE frequencies in full layers.
        rope_scaling: Scaling of the RoPE frequencies in full layers. None: no scaling.
        local_theta: Base of the RoPE frequencies in windowed layers.
        norm_eps: Epsilon of the norms.
        tie: Share the embedding with the output head.
        max_length: Context length of the trained model, in tokens. Nothing is cut to it.
        init_std: Standard deviation of fresh weights.

    Raises:
        ValueError: A size, rate, window or cap is not positive, `kv_heads` does not divide `heads`,
            or `head_dim` is odd.

    Example:

        >>> config = gemma3(vocab_size=64, embed=16, depth=2, heads=4, mlp=32, pattern=2)
        >>> [layer.attention.window for layer in config.layers]
        [1024, None]
    """
    attention = Attention(
        **shape.heads(embed, heads, kv_heads, head_dim),
        rope=Rope(theta=rope_theta, scaling=rope_scaling),
        soft_cap=score_cap,
        scale=query_scalar**-0.5,
        qk_norm=True,
    )
    windows = [window if (i + 1) % pattern else None for i in range(depth)]
    block = Mlp(hidden=mlp, activation="gelu_tanh")
    base = Config(
        family="gemma3_text",
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
    return _with_ropes(base, full=Rope(theta=rope_theta, scaling=rope_scaling), local=local_theta)


def _with_ropes(config: Config, *, full: Rope, local: float) -> Config:
    layers = tuple(
        dataclasses.replace(
            la,
            attention=dataclasses.replace(
                la.attention, rope=Rope(theta=local) if la.attention.window else full
            ),
        )
        for la in config.layers
    )
    return dataclasses.replace(config, layers=layers)


def _read(keys: Keys) -> Config:
    keys.expect("architectures", ["Gemma3ForCausalLM"], ["Gemma3TextModel"])
    sizes = read_sizes(keys, max_length=131_072, logit_cap=None)
    full = {"rope_theta": keys.take("rope_theta", 1e6), **(keys.take("rope_scaling") or {})}
    local = {"rope_theta": keys.take("rope_local_base_freq", 1e4)}
    new = keys.take("rope_parameters") or {}
    outer = Outer(max_length=sizes["max_length"], width=sizes["head_dim"])
    # transformers looks for the flag outside the mapping of a kind of layer, and never finds it.
    full = {**full, **new.get(shape.FULL, {}), "truncate": None}
    rope, local_rope = (
        parse_rope(full, outer),
        parse_rope(local | new.get(shape.SLIDING, {}), outer),
    )
    if local_rope.scaling is not None:
        raise ValueError(
            "RoPE of the windowed layers must not be stretched, got rope_parameters="
            f"{new}. No module here computes it; use the library that wrote the file."
        )
    pattern = shape.count(keys, "sliding_window_pattern", required=False) or 6
    ropes = {"rope_theta": rope.theta, "rope_scaling": rope.scaling}
    config = gemma3(**sizes, **ropes, local_theta=local_rope.theta, pattern=pattern)
    config = shape.with_kinds(keys, config, window=sizes["window"])
    return _with_ropes(config, full=rope, local=local_rope.theta)


def _write(config: Config) -> dict[str, Any]:
    kinds = [la.attention for la in config.layers if isinstance(la.attention, Attention)]
    caps = [kind.soft_cap for kind in kinds if kind.soft_cap is not None]
    if caps:
        raise ValueError(
            "The files of a gemma3_text cannot cap the scores, since transformers ignores the "
            f"key, got score_cap={caps[0]}. Build the model with score_cap=None, or save "
            "nnx.state(model) with dovetail_checkpoint.Store or Orbax."
        )
    keys = write_sizes(config, architecture="Gemma3ForCausalLM")
    ropes = {la.attention.window is None: la.attention.rope for la in config.layers}
    # Without layers of a kind, write its published base.
    full = ropes.get(True) or Rope(theta=1e6)
    local = ropes.get(False) or Rope(theta=1e4)
    scaling = describe_scaling(full)
    return keys | {
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
    read=_read, write=_write, table=(*TABLE, *shape.QK_NORMS), inert=_INERT, tied=shape.TIED
)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Common code of the encoder families: equal layers, table rows and config.json keys."""

import dataclasses
import logging
from collections.abc import Collection
from typing import Any, Literal

from dovetail_models.config import Attention, Layer
from dovetail_models.encoder_config import TextConfig, VisionConfig
from dovetail_models.families import shape
from dovetail_models.hf.table import Keys, Row, Table
from dovetail_models.layer_config import Activation, Mlp

_log = logging.getLogger(__name__)
# Dropout, a training option, is not computed here; no encoder has a head to tie.
INERT = frozenset({"attention_dropout", "tie_word_embeddings"})
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}


def norm(theirs: str, ours: str) -> Table:
    """Returns the rows of a torch `LayerNorm`."""
    return Row(f"{theirs}.weight", f"{ours}.scale", shape.SAME), Row(
        f"{theirs}.bias", f"{ours}.bias", shape.SAME
    )


def prefixed(prefix: str, table: Table, *, within: str = "") -> Table:
    """Returns `table` with prefixes before the names.

    Args:
        prefix: Prefix of the names in the file.
        table: The rows.
        within: Prefix of the model's paths.
    """
    return tuple(
        dataclasses.replace(row, theirs=prefix + row.theirs, ours=within + row.ours)
        for row in table
    )


def layers(
    embed: int,
    depth: int,
    *,
    heads: int,
    mlp: int,
    activation: Activation,
    norms: Literal["pre", "post"],
    qkv_bias: bool = True,
) -> tuple[Layer, ...]:
    """Returns `depth` equal layers without RoPE and with ungated feed-forward blocks.

    All projections have biases; `qkv_bias` decides for q, k and v.

    Args:
        embed: Width of the residual stream.
        depth: Number of layers.
        heads: Heads per layer; a divisor of `embed`.
        mlp: Hidden units of a feed-forward block.
        activation: Activation of the feed-forward blocks.
        norms: "pre": norms before each block. "post": norms after each sum.
        qkv_bias: Add biases to the q, k and v projections.

    Raises:
        ValueError: A size is not positive, or `heads` does not divide `embed`.
    """
    sizes = shape.heads(embed, heads, None, None)
    attention = Attention(**sizes, rope=None, qkv_bias=qkv_bias, out_bias=True)
    block = Mlp(hidden=mlp, activation=activation, gated=False, bias=True)
    return (Layer(attention=attention, mlp=block, norms=norms),) * depth


def read_sizes(keys: Keys, *, activation: str, eps: float, **defaults: int) -> dict[str, Any]:
    """Reads the arguments common to the encoder builders from config.json.

    Args:
        keys: The keys of config.json.
        activation: Default of `hidden_act`, as in transformers.
        eps: Default of `layer_norm_eps`, as in transformers.
        **defaults: Defaults of sizes by config.json key, as in transformers. Other sizes are
            required.

    Returns:
        Arguments of the builder by name.

    Raises:
        ValueError: The activation is unknown, or a size is missing or not a positive integer.
    """
    act = keys.take("hidden_act", activation)
    if act not in _ACTIVATIONS:
        raise ValueError(
            f"config.json key 'hidden_act' must be one of {sorted(_ACTIVATIONS)}, got "
            f"hidden_act={act!r}. No module here computes another; use the library that wrote it."
        )
    names = {
        "embed": "hidden_size",
        "depth": "num_hidden_layers",
        "heads": "num_attention_heads",
        "mlp": "intermediate_size",
    }
    sizes = {
        ours: shape.count(keys, theirs, required=theirs not in defaults) or defaults[theirs]
        for ours, theirs in names.items()
    }
    eps = keys.take("layer_norm_eps", eps)
    return {**sizes, "activation": _ACTIVATIONS[act], "norm_eps": eps}


def write_sizes(config: TextConfig | VisionConfig) -> dict[str, Any]:
    """Returns the config.json keys read by `read_sizes`."""
    layer = config.layers[0]
    assert isinstance(layer.attention, Attention)
    assert isinstance(layer.mlp, Mlp)
    names = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
    return {
        "hidden_size": config.embed,
        "num_hidden_layers": len(config.layers),
        "num_attention_heads": layer.attention.heads,
        "intermediate_size": layer.mlp.hidden,
        "hidden_act": names[layer.mlp.activation],
        "layer_norm_eps": config.norm.eps,
    }


def read_size(keys: Keys, name: str, default: int) -> tuple[int, int]:
    """Returns (height, width) from one number or a pair.

    Args:
        keys: The keys of config.json.
        name: The key.
        default: Value for a missing key.

    Raises:
        ValueError: The value is not a positive integer or a pair of them.
    """
    value = keys.take(name, default)
    pair = value if isinstance(value, list | tuple) else (value, value)
    if len(pair) != 2 or not all(type(n) is int and n > 0 for n in pair):
        raise ValueError(
            f"config.json key {name!r} must be a whole number above 0 or a pair of them, got "
            f"{name}={value!r}. Correct config.json."
        )
    return pair[0], pair[1]


def write_size(pair: tuple[int, int]) -> int | list[int]:
    """Returns the config.json value for a (height, width) pair."""
    return pair[0] if pair[0] == pair[1] else list(pair)


def read_square(keys: Keys, name: str, default: int) -> int:
    """Returns the side of a square from one number or two equal ones.

    Args:
        keys: The keys of config.json.
        name: The key.
        default: Value for a missing key.

    Raises:
        ValueError: The value is not a positive integer, or the two numbers differ.
    """
    high, wide = read_size(keys, name, default)
    if high != wide:
        raise ValueError(
            f"config.json key {name!r} must be a square here, got {name}={[high, wide]}. "
            "No module here computes another; use the library that wrote the file."
        )
    return high


def fit_pooler(config: TextConfig | VisionConfig, names: Collection[str]) -> Any:
    """Returns `config`, without its pooler if the files hold none.

    config.json seldom says whether they do.
    """
    if config.pooler is None or any(name.endswith("pooler.dense.weight") for name in names):
        return config
    _log.info("The files hold no pooler, so the model has none.")
    return dataclasses.replace(config, pooler=None)


def write_pooler(config: TextConfig | VisionConfig) -> dict[str, bool]:
    """Returns the config.json key of a model without pooler; in transformers it is an argument."""
    return {} if config.pooler else {"add_pooling_layer": False}

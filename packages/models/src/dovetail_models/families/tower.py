# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Common code of the encoder families: equal layers, table rows and config.json keys."""

import dataclasses
import functools
import logging
from collections.abc import Collection
from typing import Any, Literal, TypeVar

from dovetail_models import _elsewhere
from dovetail_models.config.decoder import Attention, Config, Layer, Norm
from dovetail_models.config.encoder import TextConfig, TokenPool, VisionConfig
from dovetail_models.config.layer import Activation, Mlp
from dovetail_models.families import shape
from dovetail_models.tables.config_json import ANY, ConfigJson, Key, Keys, Values
from dovetail_models.tables.table import SAME, Table, linear

C = TypeVar("C", Config, TextConfig, VisionConfig)
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
_HIDDEN_ACT = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}


def norm(theirs: str, ours: str) -> Table:
    """Returns the rows of a torch `LayerNorm`."""
    return linear(theirs, ours, leaf="scale", op=SAME)


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


def config(
    kind: type[C],
    family: str,
    *,
    embed: int,
    depth: int,
    heads: int,
    mlp: int,
    activation: Activation,
    norm_eps: float,
    norms: Literal["pre", "post"] = "pre",
    qkv_bias: bool = True,
    **fields: Any,
) -> C:
    """Returns a configuration with equal layers, without RoPE and gates, and with LayerNorms.

    All projections have biases; `qkv_bias` decides for q, k and v.

    Args:
        kind: Class of the configuration.
        family: Name of the family.
        embed: Width of the residual stream.
        depth: Number of layers.
        heads: Heads per layer; a divisor of `embed`.
        mlp: Hidden units of a feed-forward block.
        activation: Activation of the feed-forward blocks.
        norm_eps: Epsilon of the norms.
        norms: "pre": norms before each block. "post": norms after each sum.
        qkv_bias: Add biases to the q, k and v projections.
        **fields: Further fields of the configuration.

    Raises:
        ValueError: A size is not positive, or `heads` does not divide `embed`.
    """
    width, biases = shape.head_width(embed, heads), {"qkv_bias": qkv_bias, "out_bias": True}
    attention = Attention(heads=heads, kv_heads=heads, head_dim=width, rope=None, **biases)
    block = Mlp(hidden=mlp, activation=activation, gated=False, bias=True)
    layers = (Layer(attention=attention, mlp=block, norms=norms),) * depth
    norm = Norm(kind="layer", eps=norm_eps)
    return kind(family=family, embed=embed, layers=layers, norm=norm, **fields)


builder = _elsewhere.explained(shape.Shape, config)


def _activation(keys: Keys, name: str, *, required: bool) -> Activation | None:
    act = keys.take(name)
    if act is not None and act not in _ACTIVATIONS:
        raise ValueError(
            f"config.json key {name!r} must be one of {sorted(_ACTIVATIONS)}, got "
            f"{name}={act!r}. No module here computes another; use the library that wrote it."
        )
    return None if act is None else _ACTIVATIONS[act]


def size(keys: Keys, name: str, *, required: bool) -> tuple[int, int] | None:
    """Reads (height, width) from one number or a pair. Returns None for a missing key.

    Args:
        keys: The keys of config.json.
        name: The key.
        required: Raise for a missing key.

    Raises:
        ValueError: The value is not a positive integer or a pair of them.
    """
    value = keys.take(name, required=required)
    if value is None:
        return None
    pair = value if isinstance(value, list | tuple) else (value, value)
    if len(pair) != 2 or not all(type(n) is int and n > 0 for n in pair):
        raise ValueError(
            f"config.json key {name!r} must be a whole number above 0 or a pair of them, got "
            f"{name}={value!r}. Correct config.json."
        )
    return pair[0], pair[1]


def square(keys: Keys, name: str, *, required: bool) -> int | None:
    """Reads the side of a square from one number or two equal ones; see `size`.

    Args:
        keys: The keys of config.json.
        name: The key.
        required: Raise for a missing key.

    Raises:
        ValueError: The value is not a positive integer, or the two numbers differ.
    """
    high, wide = size(keys, name, required=required) or (None, None)
    if high != wide:
        raise ValueError(
            f"config.json key {name!r} must be a square here, got {name}={[high, wide]}. "
            "No module here computes another; use the library that wrote the file."
        )
    return high


def _arguments(config: TextConfig | VisionConfig) -> dict[str, Any]:
    """Returns the builder's arguments of a configuration. All layers are like the first."""
    layer, pooler = config.layers[0], config.pooler
    assert isinstance(layer.attention, Attention)
    return {
        **vars(config),
        "depth": len(config.layers),
        "heads": layer.attention.heads,
        "qkv_bias": layer.attention.qkv_bias,
        "mlp": layer.mlp.hidden,
        "activation": layer.mlp.activation,
        "norm_eps": config.norm.eps,
        "width": pooler.width if isinstance(pooler, TokenPool) else config.embed,
    }


_KEYS = (
    Key("vocab_size", "vocab_size"),
    Key("hidden_act", "activation", None, _activation, _HIDDEN_ACT.__getitem__),
    Key("hidden_size", "embed"),
    Key("num_hidden_layers", "depth"),
    Key("num_attention_heads", "heads"),
    Key("intermediate_size", "mlp"),
    Key("layer_norm_eps", "norm_eps", None, ANY),
    Key("max_position_embeddings", "max_length", None),
    Key("type_vocab_size", "token_types", 2),
    Key("image_size", "image_size", 224, size),
    Key("patch_size", "patch", 16, square),
    Key("num_channels", "channels", 3),
    Key("qkv_bias", "qkv_bias", True, ANY),
    Key("initializer_range", "init_std", 0.02, ANY),
)
encoder_json = functools.partial(ConfigJson, keys=_KEYS, arguments=_arguments)


def fit_pooler(config: TextConfig | VisionConfig, names: Collection[str]) -> Any:
    """Returns `config`, without its pooler if the files hold none.

    config.json seldom says whether they do.
    """
    if config.pooler is None or any(name.endswith("pooler.dense.weight") for name in names):
        return config
    _log.info("The files hold no pooler, so the model has none.")
    return dataclasses.replace(config, pooler=None)


def write_pooler(config: TextConfig | VisionConfig) -> Values:
    """Returns the config.json key of a model without pooler; in transformers it is an argument."""
    return {} if config.pooler else {"add_pooling_layer": False}

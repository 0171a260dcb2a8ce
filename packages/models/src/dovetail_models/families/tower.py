# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the families of encoders share: equal layers, rows of tables, keys of config.json."""

import dataclasses
import logging
from collections.abc import Collection
from typing import Any, Literal

from dovetail_models.config import Activation, Attention, Layer, Mlp
from dovetail_models.encoder_config import TextConfig, VisionConfig
from dovetail_models.families import shape
from dovetail_models.hf.table import Keys, Row, Table

_log = logging.getLogger(__name__)
# Dropout, which these keys set, acts in training and is not computed here.
DROPOUT = frozenset(
    {"attention_dropout", "attention_probs_dropout_prob", "classifier_dropout"}
    | {"hidden_dropout_prob"}
)
INERT = shape.INERT | DROPOUT | {"gradient_checkpointing", "tie_word_embeddings"}
_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}


def norm(theirs: str, ours: str) -> Table:
    """The rows of a torch `LayerNorm`."""
    return Row(f"{theirs}.weight", f"{ours}.scale", shape.SAME), Row(
        f"{theirs}.bias", f"{ours}.bias", shape.SAME
    )


def prefixed(prefix: str, table: Table, *, within: str = "") -> Table:
    """The table with `prefix` before their names and `within` before ours."""
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
    """`depth` equal layers, every projection of which has a bias unless `qkv_bias` is False."""
    sizes = shape.heads(embed, heads, None, None)
    attention = Attention(**sizes, rope=None, qkv_bias=qkv_bias, out_bias=True)
    block = Mlp(hidden=mlp, activation=activation, gated=False, bias=True)
    return (Layer(attention=attention, mlp=block, norms=norms),) * depth


def read_sizes(keys: Keys, *, activation: str, eps: float, **defaults: int) -> dict[str, Any]:
    """The arguments that every builder takes, from config.json; `activation`, `eps` and `defaults`
    are what transformers takes for a key that is not there."""
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
    """The keys that `read_sizes` reads."""
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
    """(height, width) of a key that is one number or two."""
    value = keys.take(name, default)
    pair = value if isinstance(value, list | tuple) else (value, value)
    if len(pair) != 2 or not all(type(n) is int and n > 0 for n in pair):
        raise ValueError(
            f"config.json key {name!r} must be a whole number above 0 or a pair of them, got "
            f"{name}={value!r}. Correct config.json."
        )
    return pair[0], pair[1]


def write_size(pair: tuple[int, int]) -> int | list[int]:
    """The value that `read_size` reads."""
    return pair[0] if pair[0] == pair[1] else list(pair)


def read_square(keys: Keys, name: str, default: int) -> int:
    """The side of a key that is one number, or two equal ones."""
    high, wide = read_size(keys, name, default)
    if high != wide:
        raise ValueError(
            f"config.json key {name!r} must be a square here, got {name}={[high, wide]}. "
            "No module here computes another; use the library that wrote the file."
        )
    return high


def fit_pooler(config: TextConfig | VisionConfig, names: Collection[str]) -> Any:
    """The config without its pooler if the files hold none, which config.json seldom tells."""
    if config.pooler is None or any(name.endswith("pooler.dense.weight") for name in names):
        return config
    _log.info("The files hold no pooler, so the model has none.")
    return dataclasses.replace(config, pooler=None)


def write_pooler(config: TextConfig | VisionConfig) -> dict[str, bool]:
    """A key for a model without pooler, of which transformers knows the name as an argument."""
    return {} if config.pooler else {"add_pooling_layer": False}

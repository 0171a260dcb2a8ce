# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conversion between config.json and `Config`."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from dovetail_models.build import AnyConfig
from dovetail_models.config.decoder import Attention, Config
from dovetail_models.config.encoder import DualConfig
from dovetail_models.families import FAMILIES
from dovetail_models.hf.accept import accepted
from dovetail_models.tables.config_json import Keys, near
from dovetail_models.tables.table import Family


def parse(values: Mapping[str, Any], *, allow: tuple[str, ...] = ()) -> AnyConfig:
    """Returns the configuration described by the keys of a config.json.

    Args:
        values: The keys and their values.
        allow: Unknown keys to accept, beside those of `accepting`.

    Raises:
        ValueError: The family or a key is unknown, or a key has a wrong value.
    """
    allow = (*allow, *accepted().allow)
    keys = Keys(values, allow=allow)
    kind = keys.take("model_type", required=True)
    if kind not in FAMILIES:
        raise ValueError(
            f"model_type must be one of {sorted(FAMILIES)}, got model_type={kind!r}"
            f"{near(kind, FAMILIES)}. Convert the model, or use the library that wrote it."
        )
    config = FAMILIES[kind].config_json.read(keys)
    # The files themselves tell the storage format of the weights.
    for name in ("dtype", "torch_dtype", "quantization_config"):
        keys.take(name)
    return dataclasses.replace(config, extra=keys.extra(FAMILIES[kind].inert, allow))


def describe(config: AnyConfig) -> dict[str, Any]:
    """Returns the config.json keys of `config`.

    Raises:
        ValueError: The family is unknown, or its config.json cannot express the configuration.
    """
    if config.family not in FAMILIES:
        raise ValueError(
            f"Config.family must be one of {sorted(FAMILIES)}, got family={config.family!r}"
            f"{near(config.family, FAMILIES)}. Build the config with a family's function."
        )
    if isinstance(config, Config):
        _check_layers(config, FAMILIES[config.family])
    extra = {name: json.loads(text) for name, text in config.extra}
    keys = {
        **extra,
        "model_type": config.family,
        **FAMILIES[config.family].config_json.write(config),
    }
    again = parse(keys, allow=_allowed(config))
    if again != config:
        lost = [
            f"{field.name}={getattr(config, field.name)!r}"
            for field in dataclasses.fields(config)
            if getattr(again, field.name) != getattr(config, field.name)
        ]
        raise ValueError(
            f"config.json of a {config.family} must be able to say the whole config, got "
            f"{', '.join(lost)}. Make the layers as the family's function makes them."
        )
    return keys


def _check_layers(config: Config, family: Family) -> None:
    """Raises ValueError for a layer of a kind that the family's config.json cannot name."""
    for i, layer in enumerate(config.layers):
        attention, block = layer.attention, layer.mlp
        roped = not (family.rope and isinstance(attention, Attention) and attention.rope is None)
        if isinstance(attention, family.attention) and isinstance(block, family.blocks) and roped:
            continue
        kinds = " or ".join(kind.__name__ for kind in family.blocks)
        raise ValueError(
            f"Every layer of a {config.family} must have {family.attention.__name__}"
            f"{' with RoPE' if family.rope else ''} and {kinds}, got layers[{i}] with "
            f"{attention!r:.200} and {block!r:.200}. Make the layers as the family's function "
            "makes them, or save nnx.state(model) with dovetail_checkpoint.Store or Orbax."
        )


def _allowed(config: AnyConfig) -> tuple[str, ...]:
    """Returns the names of the extra keys, allowed at loading."""
    towers = (config.text, config.vision) if isinstance(config, DualConfig) else ()
    inner = [name for tower in towers for name in _allowed(tower)]
    return (*(name for name, _ in config.extra), *inner)

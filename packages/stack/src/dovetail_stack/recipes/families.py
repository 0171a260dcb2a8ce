# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Configurations of fresh decoders: `dovetail_models.Sizes` of any family, or a config.json."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail_data import Tokenizer
from dovetail_models import Config, Experts, Sizes
from dovetail_models.config.layer import divisors
from dovetail_models.fresh.sizes import decoders
from dovetail_models.hf.config import parse
from dovetail_stack.recipes.options import Shape


def completed(shape: Shape) -> Shape:
    """Returns the shape with the sizes of its family in place of those that are 0.

    Raises ValueError as `dovetail_models.Sizes`.
    """
    return shape if shape.config is not None else dataclasses.replace(shape, **vars(_sizes(shape)))


def _sizes(shape: Shape) -> Sizes:
    return Sizes(**{name: value for name, value in vars(shape).items() if value})


def config_of(
    shape: Shape, *, vocab_size: int, length: int, keys: Mapping[str, Any] | None = None
) -> Config:
    """Returns the configuration of a decoder of this shape. It has no ids of special tokens.

    Args:
        shape: Family and sizes, or a config.json.
        vocab_size: Rows of the embedding.
        length: Length of the training rows.
        keys: Keys of that config.json as read before. None: read it.

    Raises:
        ValueError: Family and sizes do not fit, or the file describes no such decoder.

    Example:

        >>> config = config_of(Shape(family="gemma3", embed=64), vocab_size=512, length=32)
        >>> config.family, config.layers[0].attention.head_dim, config.tie
        ('gemma3_text', 64, True)
    """
    if shape.config is None:
        return _sizes(shape).config(vocab_size=vocab_size, max_length=length)
    keys = read_keys(shape.config) if keys is None else keys
    config = parse({**keys, "vocab_size": vocab_size})
    if not isinstance(config, Config):
        raise ValueError(
            f"a language model is a decoder, got a config.json with model_type="
            f"{keys['model_type']!r}, an encoder, which predicts no next token: pass that of one "
            f"of {', '.join(decoders())}"
        )
    if length > config.max_length:
        raise ValueError(
            f"rows must fit the {config.max_length} positions that the config.json names, got "
            f"length={length}: pass length={config.max_length}, or edit a copy of the file"
        )
    return config


def config_for(
    shape: Shape,
    tokenizer: Tokenizer,
    *,
    length: int,
    vocab_size: int | None = None,
    eos_ids: Sequence[int] | None = None,
    keys: Mapping[str, Any] | None = None,
) -> Config:
    """Returns the configuration of a decoder for a tokenizer.

    The ids that begin and end a text are stored in it, so other programs know when to stop. Ids of
    other special tokens in a config.json are left out: they belong to another vocabulary.

    Args:
        shape: Family and sizes, or a config.json.
        tokenizer: The tokenizer.
        length: Length of the training rows.
        vocab_size: Rows of the embedding, if others than the tokenizer's ids.
        eos_ids: Ids that end a text, if others than the tokenizer's `eos_id`.
        keys: See `config_of`.

    Example:

        >>> from dovetail_data import Bytes
        >>> config_for(Shape(), Bytes(), length=32).extra
        (('bos_token_id', '256'), ('eos_token_id', '257'))
    """
    size = vocab_size or tokenizer.vocab_size
    config = config_of(shape, vocab_size=size, length=length, keys=keys)
    extra = {name: text for name, text in config.extra if not name.endswith("_token_id")}
    eos = tokenizer.eos_id if eos_ids is None else list(eos_ids)
    ids = {"bos_token_id": tokenizer.bos_id, "eos_token_id": eos}
    extra |= {name: json.dumps(value) for name, value in ids.items()}
    return dataclasses.replace(config, extra=tuple(sorted(extra.items())))


def read_keys(path: str | Path) -> dict[str, Any]:
    """Returns the keys of a config.json, or of the one in a directory.

    Raises ValueError unless the file is there and holds a JSON object.
    """
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        keys = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(keys, dict):
            raise ValueError(f"it holds a {type(keys).__name__}")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"a model is described by the JSON object of a config.json, got {str(file)!r} "
            f"({error}): pass --config the file that transformers writes, or its directory"
        ) from error
    return keys


def is_mixture(config: Config) -> bool:
    """Tests whether a layer is a mixture of experts."""
    return any(isinstance(layer.mlp, Experts) for layer in config.layers)


def check_experts(config: Config, *, ways: int) -> None:
    """Raises ValueError unless the experts of every mixture divide among `ways` groups of devices.

    Experts that do not divide would lie on all of them, whole.
    """
    counts = [layer.mlp.count for layer in config.layers if isinstance(layer.mlp, Experts)]
    for count in counts:
        if count % ways:
            raise ValueError(
                f"the {count} experts of a layer must divide among the devices of their axis, got "
                f"expert={ways}: pass one of {', '.join(map(str, divisors(count)))}"
            )

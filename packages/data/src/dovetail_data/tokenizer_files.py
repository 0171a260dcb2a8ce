# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a corpus, kept in its directory to decode its ids."""

from pathlib import Path

from dovetail_data._durable import write_file
from dovetail_data._special_ids import name_of, read_config
from dovetail_data.index import write_json
from dovetail_data.tokenizer import Bytes, Pretrained, Tokenizer

_BYTES = "bytes.json"  # a marker: a tokenizer of bytes has no file of its own
_CONFIG = "tokenizer_config.json"
_NAMES = (_BYTES, "tokenizer.json", _CONFIG)


def save_tokenizer(tokenizer: Tokenizer | None, directory: Path) -> list[str]:
    """Writes a tokenizer of this package to `directory`. Other tokenizers are left out.

    Returns the names of its files.
    """
    if tokenizer is not None and tokenizer.fingerprint == Bytes.fingerprint:
        write_json(directory / _BYTES, {"tokenizer": tokenizer.fingerprint})
    elif isinstance(tokenizer, Pretrained):
        bos = None if tokenizer.bos_id is None else tokenizer.name_of(tokenizer.bos_id)
        config = {"bos_token": bos, "eos_token": tokenizer.name_of(tokenizer.eos_id)}
        write_json(directory / _CONFIG, {**config, "add_bos_token": bos is not None})
        write_file(directory / "tokenizer.json", tokenizer.content.encode())
    return tokenizer_names(directory)


def tokenizer_names(directory: Path) -> list[str]:
    """Returns the names of the files that `save_tokenizer` wrote."""
    return [name for name in _NAMES if (directory / name).is_file()]


def load_tokenizer(directory: Path) -> Tokenizer | None:
    """Returns the tokenizer from `save_tokenizer`, or None if it wrote none."""
    if (directory / _BYTES).exists():
        return Bytes()
    if (directory / "tokenizer.json").exists():
        # By name: bos may be another than the one that tokenizer.json puts before a text.
        return Pretrained(directory, bos=name_of(read_config(directory / _CONFIG), "bos_token"))
    return None

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The tokenizer that wrote a corpus, kept with it so that its ids can be read."""

from pathlib import Path

from dovetail_data._durable import write_file
from dovetail_data.index import write_json
from dovetail_data.tokenizer import Bytes, Pretrained, Tokenizer, require_tokenizers

_BYTES = "bytes.json"  # says so: a tokenizer of bytes has no file of its own


def save_tokenizer(tokenizer: Tokenizer, directory: Path) -> None:
    """Writes a tokenizer of this package to `directory`; one of the user's own is left out."""
    if tokenizer.fingerprint == Bytes.fingerprint:
        write_json(directory / _BYTES, {"tokenizer": tokenizer.fingerprint})
    elif isinstance(tokenizer, Pretrained):
        name = require_tokenizers().Tokenizer.from_str(tokenizer.content).id_to_token
        bos = None if tokenizer.bos_id is None else name(tokenizer.bos_id)
        config = {"bos_token": bos, "eos_token": name(tokenizer.eos_id)}
        write_json(directory / "tokenizer_config.json", config)
        write_file(directory / "tokenizer.json", tokenizer.content.encode())


def load_tokenizer(directory: Path) -> Tokenizer | None:
    """The tokenizer that `save_tokenizer` wrote; None if it wrote none."""
    if (directory / _BYTES).exists():
        return Bytes()
    if (directory / "tokenizer.json").exists():
        return Pretrained(directory)
    return None

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Files of tokenizers: one trained from texts, and the one of a corpus.

Training is that of a byte-level BPE tokenizer (Sennrich et al. 2016, arXiv:1508.07909). A corpus
keeps its tokenizer in its directory to decode its ids.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from dovetail_data import _elsewhere
from dovetail_data._arguments import require_integer, require_path, require_tokenizers, wrong
from dovetail_data._durable import write_file
from dovetail_data.corpus.index import write_json
from dovetail_data.tokenizing.special_ids import name_of, read_config
from dovetail_data.tokenizing.tokenizer import (
    Bytes,
    Pretrained,
    Tokenizer,
    tokenizer_file,
)

_BYTES = "bytes.json"  # a marker: a tokenizer of bytes has no file of its own
_CONFIG = "tokenizer_config.json"
_NAMES = (_BYTES, "tokenizer.json", _CONFIG)
_BOS, _EOS = "<|bos|>", "<|eos|>"
_SMALLEST = 256 + 2  # every byte, and the two special tokens


@_elsewhere.train_bpe
def train_bpe(texts: Iterable[str], path: str | Path, *, vocab_size: int) -> Pretrained:
    """Trains a byte-level BPE tokenizer and writes it as tokenizer.json.

    Every string round-trips, seen or not. The same texts give the same file. transformers can load
    it: tokenizer_config.json lies beside it. Needs the extra `tokenizers`.

    Args:
        texts: The texts; read once.
        path: A .json file, or a directory, created if need be.
        vocab_size: Size of the vocabulary, at least 258: the 256 bytes and the special tokens
            <|bos|> and <|eos|>. The result is smaller if the texts hold too few pairs to merge.

    Returns:
        The tokenizer.

    Raises:
        ValueError: `vocab_size` is below 258.
        ImportError: The package `tokenizers` is missing.

    Example:

        >>> tokenizer = train_bpe(["to be, or not to be"] * 9, "bpe", vocab_size=264)
        >>> tokenizer.decode(tokenizer.encode(["to be"])[0].ids)
        'to be'
    """
    require_integer("vocab_size", vocab_size, f"Pass at least {_SMALLEST}.")
    if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable):
        raise wrong("texts", "a sequence of strings", texts, 'Pass ["a text", ..].')
    if vocab_size < _SMALLEST:
        raise ValueError(
            f"vocab_size must be >= {_SMALLEST}, for all bytes and 2 special tokens: got "
            f"vocab_size={vocab_size}. Pass at least {_SMALLEST}."
        )
    file = tokenizer_file(require_path("path", path))
    file.parent.mkdir(parents=True, exist_ok=True)
    content = _train(map(_checked, texts), vocab_size)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _BOS,
        "eos_token": _EOS,
        "add_bos_token": True,
        "clean_up_tokenization_spaces": False,
    }
    write_file(file.with_name(_CONFIG), json.dumps(config, indent=2) + "\n")
    write_file(file, content)
    return Pretrained(file)


def _checked(text: object) -> str:
    if not isinstance(text, str):
        raise wrong("texts", "a sequence of strings", text, 'Pass ["a text", ..].')
    return text


def _train(texts: Iterable[str], vocab_size: int) -> str:
    lib = require_tokenizers()
    tokenizer = lib.Tokenizer(lib.models.BPE())
    tokenizer.pre_tokenizer = lib.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = lib.decoders.ByteLevel()
    trainer = lib.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[_BOS, _EOS],
        initial_alphabet=lib.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # Other programs that load the file then start each text as our corpora do.
    tokenizer.post_processor = lib.processors.TemplateProcessing(
        single=f"{_BOS} $A",
        pair=f"{_BOS} $A {_BOS} $B",
        special_tokens=[(_BOS, tokenizer.token_to_id(_BOS))],
    )
    return tokenizer.to_str(pretty=True)


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

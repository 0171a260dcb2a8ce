# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The bytes of text behind each id of a tokenizer: their number, for bits per byte, and themselves.

`tokenizers` decodes whole sequences to valid UTF-8, so half a character comes out as U+FFFD. Here
each id is decoded by itself, to the bytes that it adds in the middle of a text, as its decoder in
the tokenizer.json says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int32

from dovetail_data._arguments import wrong
from dovetail_data.tokenizing.tokenizer import Bytes, Pretrained

_STEPS = ("ByteLevel", "ByteFallback", "Metaspace", "WordPiece")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# `cleanup` of tokenizers' WordPiece, in its order.
_CLEANUP = {
    " .": ".",
    " ?": "?",
    " !": "!",
    " ,": ",",
    " ' ": "'",
    " n't": "n't",
    " 'm": "'m",
    " do not": " don't",
    " 's": "'s",
    " 've": "'ve",
    " 're": "'re",
}


def vocabulary_bytes(tokenizer: Bytes | Pretrained) -> list[bytes | None]:
    """Returns the bytes that each id adds in the middle of a text. None for ids without a text.

    Joined over the ids of a text they are its UTF-8 bytes, after the tokenizer's normalizer. One
    id may hold half a character. At the start of a text two kinds of tokenizers differ: a space
    that they put before each text (▁ of SentencePiece, `add_prefix_space`) is in the bytes of the
    first id and not in the text, and WordPiece gives every word a space before it, the first too.

    Without a text are special ids, bos and eos, the unknown token, and ids of no token. Spaces
    beside an added token that takes them in (`lstrip`, `rstrip`) are not counted.

    Raises:
        TypeError: `tokenizer` is another one, which does not say its bytes.
        ValueError: The decoder of a tokenizer.json is not one of ByteLevel, ByteFallback,
            Metaspace, Replace and WordPiece, or its model marks the ends of words.

    Example:

        >>> vocabulary_bytes(Bytes())[64:67]
        [b'@', b'A', b'B']
    """
    if not isinstance(tokenizer, Bytes | Pretrained):
        raise wrong("tokenizer", "Bytes or Pretrained", tokenizer, "Pass Bytes().")
    if isinstance(tokenizer, Bytes):
        return [*(bytes([value]) for value in range(256)), None, None]
    content = json.loads(tokenizer.content)
    steps = _steps(content)
    model = content["model"]
    listed = model["vocab"]  # of a Unigram model: tokens and scores
    numbered = listed if isinstance(listed, dict) else {e[0]: i for i, e in enumerate(listed)}
    out: list[bytes | None] = [None] * tokenizer.vocab_size
    for token, i in numbered.items():
        out[i] = None if token == model.get("unk_token") else _decoded(token, steps)
    if model.get("unk_id") is not None:  # of a Unigram model
        out[model["unk_id"]] = None
    for added in content["added_tokens"]:
        byte_level = any(step["type"] == "ByteLevel" for step in steps)
        text = added["content"]  # the letters of an added token stand for themselves
        plain = text.encode() if byte_level else _decoded(text, steps)
        out[added["id"]] = None if added["special"] else plain
    for special in (tokenizer.bos_id, tokenizer.eos_id):
        if special is not None:
            out[special] = None
    return out


def token_bytes(tokenizer: Bytes | Pretrained) -> Int32[np.ndarray, "V"]:
    """Returns the number of bytes that each id adds to a text, i32[vocab_size].

    Special ids add 0. Bits per byte is the loss in bits, summed over targets, divided by the sum of
    these over the targets. They count the bytes of `vocabulary_bytes`: a space that the tokenizer
    puts before each text is one too many.

    Raises:
        TypeError: As `vocabulary_bytes`.
        ValueError: As `vocabulary_bytes`.

    Example:

        >>> token_bytes(Bytes())[[65, 256]]
        array([1, 0], dtype=int32)
    """
    return np.array([len(token or b"") for token in vocabulary_bytes(tokenizer)], np.int32)


def _steps(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the steps of a decoder that change a token in the middle of a text.

    Raises:
        ValueError: A step depends on other tokens, or is not known.
    """
    decoder, model = content["decoder"], content["model"]
    listed = decoder["decoders"] if decoder and decoder["type"] == "Sequence" else [decoder]
    for name in ("end_of_word_suffix", "continuing_subword_prefix"):
        if model.get("type", "BPE") == "BPE" and model.get(name):
            raise _unknown(f"model.{name}={model[name]!r}")
    steps, fused = [], False
    for step in listed:
        kind = step and step["type"]
        known = kind in _STEPS or (kind == "Replace" and "String" in step["pattern"])
        if kind == "Fuse":
            fused = True
        elif known and not fused:
            steps.append(step)
        elif not (kind == "Strip" and fused):  # a Strip behind Fuse cuts the ends of the text alone
            raise _unknown(f"decoder={kind!r}")
    if len(steps) > 1 and any(step["type"] == "ByteLevel" for step in steps):
        raise _unknown(f"decoder={[step['type'] for step in listed]}")
    return steps


def _unknown(received: str) -> ValueError:
    return ValueError(
        "the decoder of a tokenizer must give each token its own bytes (ByteLevel, ByteFallback, "
        f"Metaspace, Replace, WordPiece): got {received}. Make the bytes of its ids yourself and "
        "pass that list on."
    )


def _decoded(token: str, steps: list[Mapping[str, Any]]) -> bytes:
    """Returns the bytes of one token, decoded behind another."""
    for step in steps:
        kind = step["type"]
        if kind == "ByteLevel":
            return _byte_level(token)
        if kind == "ByteFallback" and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        if kind == "Metaspace":
            token = token.replace(step["replacement"], " ")
        elif kind == "Replace":
            token = token.replace(step["pattern"]["String"], step["content"])
        elif kind == "WordPiece":
            token = _word_piece(token, step)
    return token.encode()


def _word_piece(token: str, step: Mapping[str, Any]) -> str:
    prefix = step["prefix"]
    token = token.removeprefix(prefix) if token.startswith(prefix) else f" {token}"
    if step["cleanup"]:
        for before, after in _CLEANUP.items():
            token = token.replace(before, after)
    return token


def _alphabet() -> dict[str, int]:
    """Returns the byte of each character of GPT-2's alphabet.

    Printable bytes stand for themselves; the others have the characters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    return {
        **{chr(value): value for value in printable},
        **{chr(0x100 + i): value for i, value in enumerate(others)},
    }


_BYTES_OF = _alphabet()


def _byte_level(token: str) -> bytes:
    values = [_BYTES_OF.get(character) for character in token]
    known = [value for value in values if value is not None]
    return bytes(known) if len(known) == len(values) else token.encode()

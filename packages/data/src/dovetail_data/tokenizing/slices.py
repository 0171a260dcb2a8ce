# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Long texts through a tokenizer of Hugging Face `tokenizers`, a slice at a time.

The library takes about 100 bytes of memory for each byte of a text. Many tokenizers are local: a
pre-tokenizer scans the text from left to right and cuts it into words, and each word is encoded by
itself. Scanning may then begin at the start of any word. So a slice is encoded, the ids before its
last words are kept, and the next slice begins with the first word that was not. A margin at the end
covers the characters that the scan looks ahead.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

_MARGIN = 1024  # characters, more than any added token of a local tokenizer
_HARMLESS = re.compile(r"\[\^|\(\?!\\S\)")  # in a pattern: a negated class, one character ahead
_LOOKS_AROUND = re.compile(r"\(\?[=!<]|\\[bBGAK]|\^")


def is_local(content: str) -> bool:
    """Whether a tokenizer.json encodes each word by itself, with words found from left to right.

    True for one scan, by ByteLevel or by Split with a pattern that does not look back, together
    with Digits. The first word must have no prefix, and NFC is the only normalizer. Tokens added to
    the vocabulary must not take in the white space around them.
    """
    fields = json.loads(content)
    normalizer, pre_tokenizer = fields.get("normalizer"), fields.get("pre_tokenizer")
    if pre_tokenizer is None or (normalizer is not None and normalizer["type"] != "NFC"):
        return False
    for token in fields.get("added_tokens", ()):
        if token["lstrip"] or token["rstrip"] or token["single_word"]:
            return False
        if len(token["content"]) >= _MARGIN:
            return False
    steps = [pre_tokenizer]
    if pre_tokenizer["type"] == "Sequence":
        steps = pre_tokenizer["pretokenizers"]
    return all(map(_is_step, steps)) and sum(map(_scans, steps)) <= 1


def _scans(step: dict[str, Any]) -> bool:
    """Whether a step of a pre-tokenizer applies a pattern. Digits looks at two characters alone."""
    return step["type"] == "Split" or (step["type"] == "ByteLevel" and step["use_regex"])


def _is_step(step: dict[str, Any]) -> bool:
    if step["type"] == "ByteLevel":
        return not step["add_prefix_space"]
    if step["type"] == "Split":
        pattern = step["pattern"].get("Regex")
        behavior = step["behavior"] in ("Isolated", "Removed")
        return (
            pattern is not None
            and behavior
            and not step["invert"]
            and not _LOOKS_AROUND.search(_HARMLESS.sub("", pattern))
        )
    return step["type"] == "Digits"


def slices(tokenizer: Any, text: str, size: int) -> Iterator[np.ndarray]:
    """Yields the ids of `text` in pieces.

    Args:
        tokenizer: A local `tokenizers.Tokenizer`.
        text: The text.
        size: Characters of a slice. It doubles where a word is longer.
    """
    begin, length = 0, size
    while begin < len(text):
        encoded = tokenizer.encode(text[begin : begin + length], add_special_tokens=False)
        ids = np.array(encoded.ids, np.int32)
        if begin + length >= len(text):
            yield ids
            return
        kept, stop = _last_word(encoded, length - _MARGIN)
        if kept:
            yield ids[:kept]
            begin, length = begin + stop, size
        else:
            length *= 2


def _last_word(encoded: Any, limit: int) -> tuple[int, int]:
    """Returns first id and first character of the last word that begins before `limit`."""
    for i in range(len(encoded) - 1, 0, -1):
        start, _ = encoded.token_to_chars(i)
        if start < limit and encoded.token_to_word(i) != encoded.token_to_word(i - 1):
            return i, start
    return 0, 0

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The bytes of text behind each id of a tokenizer, for bits per byte."""

from __future__ import annotations

import json

import numpy as np
from jaxtyping import Int32

from dovetail_data._arguments import wrong
from dovetail_data.tokenizer import Bytes, Pretrained


def token_bytes(tokenizer: Bytes | Pretrained) -> Int32[np.ndarray, "V"]:
    """Returns the UTF-8 bytes that each id adds to a text, i32[vocab_size]. Special ids add 0.

    Bits per byte is the loss in bits, summed over targets, divided by the sum of these over the
    targets.

    Raises:
        ValueError: A tokenizer.json is not byte-level.

    Example:

        >>> token_bytes(Bytes())[[65, 256]]
        array([1, 0], dtype=int32)
    """
    if not isinstance(tokenizer, Bytes | Pretrained):
        raise wrong("tokenizer", "Bytes or Pretrained", tokenizer, "Pass Bytes().")
    if isinstance(tokenizer, Bytes):
        return (np.arange(tokenizer.vocab_size) < 256).astype(np.int32)
    content = json.loads(tokenizer.content)
    decoder = content["decoder"] and content["decoder"]["type"]
    if decoder != "ByteLevel":
        raise ValueError(
            f"the tokenizer must be byte-level to count bytes: got decoder={decoder!r}. "
            "Count the bytes of its ids yourself and pass that array on."
        )
    counts = np.zeros(tokenizer.vocab_size, np.int32)
    for token, i in content["model"]["vocab"].items():
        counts[i] = len(token)  # byte-level: one character stands for one byte
    for added in content["added_tokens"]:
        counts[added["id"]] = 0 if added["special"] else len(added["content"].encode())
    return counts

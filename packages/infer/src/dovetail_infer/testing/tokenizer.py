# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A tokenizer without a vocabulary file: one token per byte."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

BOS_ID = 256
EOS_ID = 257
_NAMES = {BOS_ID: b"<|bos|>", EOS_ID: b"<|eos|>"}


@dataclasses.dataclass(frozen=True)
class ByteEncoding:
    """Tokens of a text.

    Attributes:
        ids: Its UTF-8 bytes.
    """

    ids: list[int]


class ByteTokenizer:
    """A `Tokenizer` with the UTF-8 bytes as ids 0 to 255, bos 256 and eos 257.

    Their names are <|bos|> and <|eos|>.

    Example:

        >>> from dovetail_infer.testing import ByteTokenizer
        >>> tokenizer = ByteTokenizer()
        >>> tokenizer.encode(["é"])[0].ids
        [195, 169]
        >>> tokenizer.decode([195, 169, 257])
        'é'
    """

    vocab_size = 258
    bos_id = BOS_ID
    eos_id = EOS_ID

    def encode(self, texts: Sequence[str]) -> list[ByteEncoding]:
        """Encodes texts without bos and eos."""
        return [ByteEncoding(list(text.encode())) for text in texts]

    def decode(self, ids: Sequence[int] | Int[np.ndarray, " T"]) -> str:
        """Returns the text. Bytes that are not UTF-8 become U+FFFD, ids from 256 on add nothing."""
        return bytes(int(i) for i in ids if i < BOS_ID).decode(errors="replace")

    def decode_with_specials(self, ids: Sequence[int] | Int[np.ndarray, " T"]) -> str:
        """Returns the text of `decode`, with <|bos|> and <|eos|> at their places."""
        content = [_NAMES.get(int(i), b"") if i >= BOS_ID else bytes([int(i)]) for i in ids]
        return b"".join(content).decode(errors="replace")

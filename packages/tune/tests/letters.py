# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Batches of bytes, and tokenizers that read them."""

import numpy as np


class Letters:
    """UTF-8 bytes, with bos 256, eos 257 and a space that the first word does not show."""

    bos_id, eos_id = 256, 257

    def decode(self, ids):
        text = bytes(i for i in ids if i < 256).decode("utf-8", errors="replace")
        return text.removeprefix(" ")


class Bare:
    """A tokenizer without names of special ids."""

    def decode(self, ids):
        return Letters().decode(ids)


def row_of(text, mask, *, length, eos=True, segment=1):
    """Returns tokens, targets, mask and segment_ids of bos, the bytes of `text`, and eos.

    Args:
        text: The text.
        mask: "0" or "1" for each id, bos and eos included.
        length: Slots of the row.
        eos: Whether the document has its eos.
        segment: Its segment id.
    """
    ids = [256, *text.encode(), *([257] if eos else [])]
    n = len(ids) - 1
    assert len(mask) == len(ids)
    fill = [0] * (length - n)
    return {
        "tokens": ids[:-1] + fill,
        "targets": ids[1:] + fill,
        "mask": [float(c) for c in mask[1:]] + fill,
        "segment_ids": [segment] * n + fill,
    }


def batch_of(*rows):
    """Returns rows as one batch."""
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def chosen_and_rejected(*answers, prompts=("2+2?", "2+2?"), length=12):
    """Returns pairs of `answers` in turn. An empty answer has no eos that counts either."""
    rows = []
    for prompt, answer in zip(prompts * (len(answers) // 2), answers, strict=True):
        counts = ("1" if answer else "0") * (len(answer.encode()) + 1)
        rows.append(row_of(prompt + answer, "0" * (1 + len(prompt)) + counts, length=length))
    return batch_of(*rows) | {"pair_ids": np.repeat(np.arange(len(answers) // 2) + 7, 2)}

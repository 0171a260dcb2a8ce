# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bits per byte of whole documents, each token predicted with as much context as a row holds."""

import functools
import math
from collections.abc import Iterator
from itertools import islice
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dovetail_data import Corpus
from dovetail_models import Decoder

Row: TypeAlias = dict[str, np.ndarray]


def windows(corpus: Corpus, *, length: int, stride: int) -> Iterator[Row]:
    """Rows of `length` that overlap, so that each target is counted once and sees a long past.

    The first row of a document counts all its targets; each later one starts `stride` further and
    counts only the targets that are new. One document a row: nothing is packed.

    Yields:
      Dicts of `tokens`, `targets` i32[length] and `mask` f32[length], 1 where a target counts.
    """
    if not 1 <= stride <= length:
        raise ValueError(f"stride must be in [1, length={length}], got {stride}: try {length // 2}")
    for i in range(len(corpus)):
        ids = np.asarray(corpus[i]["tokens"])
        pairs = len(ids) - 1
        counted = 0
        while counted < pairs:
            start = max(0, min(counted + stride, pairs) - length) if counted else 0
            end = min(start + length, pairs)
            row = {
                "tokens": np.zeros(length, np.int32),
                "targets": np.zeros(length, np.int32),
                "mask": np.zeros(length, np.float32),
            }
            row["tokens"][: end - start] = ids[start:end]
            row["targets"][: end - start] = ids[start + 1 : end + 1]
            row["mask"][counted - start : end - start] = 1
            yield row
            counted = end


def bits_per_byte(
    model: Decoder, corpus: Corpus, *, length: int, stride: int, rows_per_batch: int = 16
) -> float:
    """-log2 p(corpus) / its UTF-8 bytes, the end of each document included.

    The bytes are those of the input text, so models with other tokenizers, and compressors, can
    be compared on the same text. Documents must begin with a beginning-of-text token (as `Text`
    writes them where the tokenizer has one), or their first token goes uncounted.
    """
    graphdef, state = nnx.split(model)
    rows = windows(corpus, length=length, stride=stride)
    nats = sum(float(_nats(graphdef, state, batch)) for batch in _batched(rows, rows_per_batch))
    return nats / math.log(2) / corpus.text_bytes


def _batched(rows: Iterator[Row], size: int) -> Iterator[Row]:
    """Stacks `size` rows at a time, the last ones with empty rows: one program serves them all."""
    while block := list(islice(rows, size)):
        empty = {name: np.zeros_like(value) for name, value in block[0].items()}
        block += [empty] * (size - len(block))
        yield {name: np.stack([row[name] for row in block]) for name in empty}


@functools.partial(jax.jit, static_argnames="graphdef")
def _nats(graphdef, state, batch):
    """Sum of -ln p(target) over the targets that count, f32[]."""
    logits = nnx.merge(graphdef, state)(batch["tokens"])
    logps = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(logps, batch["targets"][..., None], axis=-1)[..., 0]
    return -(chosen * batch["mask"]).sum()

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bits per byte of whole documents, each token predicted with as much context as a row holds."""

import math

import numpy as np

from dovetail_data import Corpus
from dovetail_models import Decoder
from dovetail_train import rolling_loglikelihood


def bits_per_byte(
    model: Decoder, corpus: Corpus, *, length: int, stride: int, rows_per_batch: int = 16
) -> float:
    """Returns -log2 p(corpus) / its UTF-8 bytes, the end of each document included.

    The bytes are those of the input text. So models with different tokenizers, and compressors, can
    be compared on the same text. Documents must begin with a beginning-of-text token, as written by
    `Text` if the tokenizer has one. Otherwise their first token is not counted.

    Args:
        model: Any decoder.
        corpus: Documents of tokens.
        length: Largest number of tokens that the model reads.
        stride: New tokens of each row after the first; the others are context.
        rows_per_batch: Rows computed at once.
    """
    documents = [np.asarray(corpus[i]["tokens"]) for i in range(len(corpus))]
    likelihoods = rolling_loglikelihood(
        model, documents, length=length, stride=stride, prefix=None, rows=rows_per_batch
    )
    return -float(likelihoods.logps.sum()) / math.log(2) / corpus.text_bytes

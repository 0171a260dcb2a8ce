# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Completions made by hand."""

import dataclasses

import numpy as np

from dovetail_infer import Completion, Times


def completed(tokens, **changes):
    """A completion of these tokens, whose text and log-probabilities follow from them."""
    tokens = np.asarray(tokens, np.int32)
    zeros = np.zeros(len(tokens), np.float32)
    values = {
        "text": " ".join(map(str, tokens)),
        "tokens": tokens,
        "logprobs": zeros,
        "sampled_logprobs": zeros,
        "log_mass": zeros,
        "finish_reason": "length",
        "versions": np.zeros(len(tokens), np.int32),
        "seed": 0,
        "prompt_tokens": 1,
        "cached_tokens": 0,
        "times": Times(queued_s=None, first_token_s=None, last_token_s=None, total_s=0.0),
    }
    names = {f.name for f in dataclasses.fields(Completion)}
    return Completion(**{**dict.fromkeys(names), **values, **changes})

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays of one step, on the host: what goes into the jitted function and what comes back.

Shape letters: N tokens, R rows (requests of the step), G page groups, C columns of a page table, V
vocabulary, W = ceil(V / 32), K likeliest tokens, L layers with experts, E experts of a token. The
program pads N and R to the sizes of its bucket.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Int32, UInt32


class RowOptions(NamedTuple):
    """Sampling options of each row.

    Attributes:
        temperature: 0 is greedy.
        top_k: 0 keeps all.
        top_p: 1 keeps all.
        min_p: 0 keeps all.
        repetition_penalty: 1 for none.
        frequency_penalty: 0 for none.
        presence_penalty: 0 for none.
        bans: Whether the row's stop ids are banned at this step (`min_tokens`).
        ruled: Whether a rule draws for the row.
        keys: Data of the threefry key of the row's seed.
    """

    temperature: Float32[np.ndarray, " R"]
    top_k: Int32[np.ndarray, " R"]
    top_p: Float32[np.ndarray, " R"]
    min_p: Float32[np.ndarray, " R"]
    repetition_penalty: Float32[np.ndarray, " R"]
    frequency_penalty: Float32[np.ndarray, " R"]
    presence_penalty: Float32[np.ndarray, " R"]
    bans: Bool[np.ndarray, " R"]
    ruled: Bool[np.ndarray, " R"]
    keys: UInt32[np.ndarray, "R 2"]


class Batch(NamedTuple):
    """Input of a step.

    Attributes:
        tokens: Token ids, the rows of each request one after the other. -1 stands for the token
            that the last step of the row's slot drew, which the host does not know yet.
        counts: Number of tokens of each row. Their sum is N.
        lengths: Number of cached tokens of each row after the step: its last position + 1.
        slots: Slot of each row.
        samples: Whether the row draws a token.
        tables: Page ids of each row.
        options: Sampling options.
        adapters: Adapter of each row; -1 for none.
        targets: For prompt log-probabilities, the token after each of `tokens`; -1 for none.
    """

    tokens: Int32[np.ndarray, " N"]
    counts: Int32[np.ndarray, " R"]
    lengths: Int32[np.ndarray, " R"]
    slots: Int32[np.ndarray, " R"]
    samples: Bool[np.ndarray, " R"]
    tables: Int32[np.ndarray, "G R C"]
    options: RowOptions
    adapters: Int32[np.ndarray, " R"]
    targets: Int32[np.ndarray, " N"]


class SlotState(NamedTuple):
    """State of a slot on the device: options and tokens of its request.

    Attributes:
        bias: Added to the logits.
        prompt: Whether a token is in the prompt.
        stops: Whether a token is banned while `RowOptions.bans`.
        counts: Number of occurrences in the output so far.
    """

    bias: Float32[np.ndarray, " V"]
    prompt: Bool[np.ndarray, " V"]
    stops: Bool[np.ndarray, " V"]
    counts: Int32[np.ndarray, " V"]


class Scores(NamedTuple):
    """Log-probabilities of given or drawn tokens under softmax(logits).

    Attributes:
        logprobs: log p of the token; NaN where it is -1.
        ranks: 1 + the number of likelier tokens.
        top_tokens: The likeliest tokens in descending order.
        top_logprobs: Their log p.
    """

    logprobs: Float32[np.ndarray, " M"]
    ranks: Int32[np.ndarray, " M"]
    top_tokens: Int32[np.ndarray, "M K"]
    top_logprobs: Float32[np.ndarray, "M K"]


class Results(NamedTuple):
    """Output of a step, for the rows of its `Batch`.

    Attributes:
        tokens: Drawn tokens; -1 where the logits have NaN or nothing above -inf is left, -2 where a
            rule returned an id outside the vocabulary or a cut one.
        logprobs: log softmax(logits) of each, before any change of the logits.
        sampled_logprobs: log p in the distribution that the token was drawn from.
        log_mass: Log of the probability that the filters kept.
        top: Scores of `tokens` with the K likeliest; None unless asked for.
        kept: Bits of the kept tokens; None unless asked for.
        prompt: Scores of `Batch.targets`, for the N tokens; None unless asked for.
        experts: Experts of the N tokens; None unless the engine records them.
    """

    tokens: Int32[np.ndarray, " R"]
    logprobs: Float32[np.ndarray, " R"]
    sampled_logprobs: Float32[np.ndarray, " R"]
    log_mass: Float32[np.ndarray, " R"]
    top: Scores | None
    kept: UInt32[np.ndarray, "R W"] | None
    prompt: Scores | None
    experts: Int32[np.ndarray, "N L E"] | None

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Results of a request, in plain NumPy values."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, Int32, UInt32

FinishReason = Literal["stop", "length", "abort", "deadline", "error"]


class QueueFull(RuntimeError):
    """The queue has no place for a request.

    Attributes:
        retry_after_s: Estimated seconds until a place is free.
    """

    def __init__(self, message: str, *, retry_after_s: float):
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopLogprobs:
    """The k likeliest tokens of each step, by the model's own log-probabilities.

    Attributes:
        tokens: Ids in descending order. -1 where fewer than k are above -inf.
        logprobs: Their log-probabilities.
        ranks: 1 + the number of tokens that are likelier than the one of this step.
    """

    tokens: Int32[np.ndarray, "T K"]
    logprobs: Float32[np.ndarray, "T K"]
    ranks: Int32[np.ndarray, " T"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kept:
    """The tokens that the filters kept at each step.

    Attributes:
        tokens: With `Sampling.top_k`, the ids in ascending order, filled up with -1. K is the
            largest number of any step: ties with the k-th are kept too. Otherwise None.
        bits: Without `Sampling.top_k`, bit i % 32 of word i // 32 is token i. Otherwise None.
    """

    tokens: Int32[np.ndarray, "T K"] | None
    bits: UInt32[np.ndarray, "T W"] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Times:
    """Times of a request, in seconds since it arrived, by a clock that never goes back.

    A stream arrives when its block is entered, any other request with its call: the time that a
    prompt of a long list waits outside the queue counts. The prefill takes the time from `queued_s`
    to `first_token_s`. The mean time between n tokens is that from `first_token_s` to
    `last_token_s`, divided by n - 1.

    Attributes:
        queued_s: Until the engine planned the first step with it. None: it never ran.
        first_token_s: Until the host had its first token. None: it has no token.
        last_token_s: Until the host had its last token. None: it has no token.
        total_s: Until it ended.
    """

    queued_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    total_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Completion:
    """Result of a request.

    `logprobs` are those of the model. A token was drawn from another distribution if the request
    has a temperature, penalties or filters: `sampled_logprobs` are those of that distribution, and
    `sampled_logprobs + log_mass` those before the filters. Ratios of reinforcement learning against
    the sampler's own distribution are thus unbiased (huggingface/trl#6789).

    Attributes:
        text: The text, without a stop string. "" without a tokenizer.
        tokens: Ids, with the stop id if one ended the request.
        logprobs: log softmax(logits) of each token.
        sampled_logprobs: Log-probability of each token in the distribution that it was drawn from.
            0 at temperature 0. NaN with a `Sampling.rule`, whose distribution is not known.
        log_mass: Log of the probability that the filters kept, at the request's temperature. 0 at
            temperature 0, and without filters.
        finish_reason: "stop" (end-of-text, a stop id or a stop string), "length" (`max_tokens`, or
            the engine's `max_length`), "abort", "deadline" or "error".
        stop: The stop string or id that ended the request, or None.
        error: What failed, for "error".
        versions: Version of the weights that produced each token: the number of the newest update
            of the base or of the request's own adapter. Updates of other adapters do not count.
        seed: Seed of the draws. The same request with it has the same tokens.
        prompt_tokens: Number of tokens of the prompt.
        cached_tokens: Number of them found in the prefix cache.
        top: Likeliest tokens, for `Sampling.logprobs`.
        prompt_logprobs: Log-probability of each token of the prompt after the first, for
            `Sampling.prompt_logprobs`.
        prompt_top: Likeliest tokens at each of them.
        kept: For `Sampling.kept`, the tokens that the filters kept at each step.
        experts: Experts of each token that was read, for an engine with `record_experts`. Its last
            token was not.
        times: Times of the request. They are no part of `to_json`.
    """

    text: str
    tokens: Int32[np.ndarray, " T"]
    logprobs: Float32[np.ndarray, " T"]
    sampled_logprobs: Float32[np.ndarray, " T"]
    log_mass: Float32[np.ndarray, " T"]
    finish_reason: FinishReason
    stop: str | int | None
    error: str | None
    versions: Int32[np.ndarray, " T"]
    seed: int
    prompt_tokens: int
    cached_tokens: int
    top: TopLogprobs | None
    prompt_logprobs: Float32[np.ndarray, " P1"] | None
    prompt_top: TopLogprobs | None
    kept: Kept | None
    experts: Int32[np.ndarray, "S L K"] | None
    times: Times

    @property
    def version(self) -> int:
        """The oldest version of the weights that produced a token; -1 without tokens."""
        return int(self.versions.min()) if len(self.versions) else -1

    def to_json(self) -> dict[str, Any]:
        """Returns JSON values. Log-probabilities are there if `Sampling` asked for them.

        Numbers are the shortest that are the same in float32; -inf and NaN are null.
        """
        values: dict[str, Any] = {
            "text": self.text,
            "tokens": self.tokens.tolist(),
            "finish_reason": self.finish_reason,
            "stop": self.stop,
            "seed": self.seed,
            "prompt_tokens": self.prompt_tokens,
        }
        if self.error is not None:
            values["error"] = self.error
        if self.top is not None:
            values |= {"logprobs": _numbers(self.logprobs), "top": _top(self.top)}
        if self.prompt_logprobs is not None:
            values["prompt_logprobs"] = _numbers(self.prompt_logprobs)
            if self.prompt_top is not None:
                values["prompt_top"] = _top(self.prompt_top)
        return values


def _top(top: TopLogprobs) -> list[dict[str, Any]]:
    """Returns for each step the rank of its token, and the likeliest tokens."""
    return [
        {
            "rank": int(rank),
            "tokens": [int(i) for i in tokens if i >= 0],
            "logprobs": _numbers(logprobs[tokens >= 0]),
        }
        for rank, tokens, logprobs in zip(top.ranks, top.tokens, top.logprobs, strict=True)
    ]


def _numbers(values: Any) -> list[float | None]:
    return [float(str(x)) if math.isfinite(x) else None for x in values]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tokens:
    """A piece of a streamed completion.

    Attributes:
        text: Text that is complete: no half of a character, no beginning of a stop string.
        tokens: Ids since the last piece.
        logprobs: Their log-probabilities, as in `Completion`.
        top: Likeliest tokens at each of them, for `Sampling.logprobs`. Those of all pieces, joined,
            are `Completion.top`.
    """

    text: str
    tokens: Int32[np.ndarray, " T"]
    logprobs: Float32[np.ndarray, " T"]
    top: TopLogprobs | None

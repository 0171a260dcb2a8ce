# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities in the two forms of OpenAI's API."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail_infer.completion import Completion, Tokens, TopLogprobs
from dovetail_infer.types import NamingTokenizer, Tokenizer

_LEAST = -9999.0  # JSON has no infinity; OpenAI's API sends this


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A token with its likeliest alternatives.

    Attributes:
        token: Its id.
        logprob: Its log-probability. None for the first token of a prompt.
        top: Ids and log-probabilities of the likeliest, by falling probability.
    """

    token: int
    logprob: float | None
    top: list[tuple[int, float]]


def steps(piece: Tokens | Completion) -> list[Step]:
    """Returns the drawn tokens of a piece, or of a whole completion."""
    return _steps(piece.tokens.tolist(), piece.logprobs, piece.top)


def prompt_steps(completion: Completion, prompt: Sequence[int]) -> list[Step]:
    """Returns the tokens of the prompt of a completion with `prompt_logprobs`."""
    assert completion.prompt_logprobs is not None, "the request asked for it"
    first = Step(token=prompt[0], logprob=None, top=[])
    return [first, *_steps(prompt[1:], completion.prompt_logprobs, completion.prompt_top)]


def _steps(tokens: Sequence[int], logprobs: Any, top: TopLogprobs | None) -> list[Step]:
    count = len(tokens)
    nothing = np.zeros((count, 0), np.int32)
    ids, values = (nothing, nothing) if top is None else (top.tokens, top.logprobs)
    return [
        Step(
            token=token,
            logprob=_finite(logprobs[i]),
            top=[(int(t), _finite(x)) for t, x in zip(ids[i], values[i], strict=True) if t >= 0],
        )
        for i, token in enumerate(tokens)
    ]


def of_completion(
    steps: Sequence[Step], tokenizer: Tokenizer, *, wanted: int, offset: int
) -> dict[str, Any]:
    """Returns the `logprobs` of a choice of a completion.

    Texts of tokens with a part of a character have U+FFFD, and offsets count it.

    Args:
        steps: The tokens of its text.
        tokenizer: For their texts.
        wanted: Number of likeliest tokens in the request. 0: no `top_logprobs`.
        offset: Characters before the first token.
    """
    texts = [_text(step.token, tokenizer) for step in steps]
    tops = [
        None
        if step.logprob is None
        else {_text(t, tokenizer): x for t, x in reversed([*step.top, (step.token, step.logprob)])}
        for step in steps
    ]
    return {
        "tokens": texts,
        "token_logprobs": [step.logprob for step in steps],
        "top_logprobs": tops if wanted else None,
        "text_offset": list(itertools.accumulate(map(len, texts), initial=offset))[:-1],
    }


def of_chat(steps: Sequence[Step], tokenizer: Tokenizer) -> dict[str, Any]:
    """Returns the `logprobs` of a choice of a chat completion.

    Args:
        steps: The tokens of its content.
        tokenizer: For their texts.
    """
    content = [
        {
            **_token(step.token, step.logprob, tokenizer),
            "top_logprobs": [_token(token, value, tokenizer) for token, value in step.top],
        }
        for step in steps
    ]
    return {"content": content, "refusal": None}


def _token(token: int, logprob: float | None, tokenizer: Tokenizer) -> dict[str, Any]:
    text = _text(token, tokenizer)
    whole = "\ufffd" not in text
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if whole else None}


def _text(token: int, tokenizer: Tokenizer) -> str:
    """Returns the text of a token, also of a special one where the tokenizer names it."""
    named = isinstance(tokenizer, NamingTokenizer)
    return (tokenizer.decode_with_specials if named else tokenizer.decode)([token])


def _finite(value: Any) -> float:
    return max(float(str(np.float32(value))), _LEAST)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Options of a request."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from dovetail_infer import _elsewhere

# The device computes in float32, and processors take what is below its least normal number for 0.
_LEAST, _LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
Rule = Callable[[Any, Any], Any]


@_elsewhere.sampling
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """Options of a request. The defaults are those of OpenAI's API and vLLM.

    Logits are changed in this order: `logit_bias`, ids banned by `min_tokens`, penalties,
    `temperature`, then the filters `top_k`, `top_p` and `min_p`, each among the rest.

    Attributes:
        max_tokens: Largest number of new tokens.
        temperature: Divides the logits. 0 takes the most likely token.
        top_k: Keeps the k largest logits and all equal to the k-th. None: all.
        top_p: Keeps the fewest of the most likely tokens whose probabilities reach p
            (1904.09751). In (0, 1].
        min_p: Keeps tokens at least `min_p` times as likely as the likeliest (2407.01082).
        repetition_penalty: Divides positive logits of tokens in prompt or output, and multiplies
            negative ones (1909.05858, section 4.1).
        frequency_penalty: Subtracted from a logit for each occurrence of the token in the output.
        presence_penalty: Subtracted from the logits of tokens in the output.
        logit_bias: Added to the logits of token ids.
        min_tokens: The ids that end the completion are banned before this many tokens, and a stop
            string counts only if the text of a later token, or of this one, completes it.
        seed: Seed of the draws, in [0, 2**64). The draw of a token depends on the seed, its
            position and its probabilities alone. Options of several prompts, or of several
            completions, give each a seed of its own: see `fold_seed`. None: a new one, see
            `Completion.seed`.
        stop: Texts that end the completion. They are not part of its text. The one that is complete
            first ends it: "ab" wins over "abc".
        stop_token_ids: Ids that end the completion. They are part of its tokens, not of its text.
        ignore_eos: Do not end at the engine's `eos_ids`.
        skip_special_tokens: Leave special tokens out of the text. False keeps their names, such as
            <|channel|> for a parser, and stop strings may be such names. It needs a tokenizer with
            `decode_with_specials`. An id that ends the completion is in no text.
        logprobs: Number of likeliest tokens to return with their log-probabilities at each step.
            The log-probabilities of the drawn tokens are always returned.
        prompt_logprobs: The same for each token of the prompt. 0: of the prompt's tokens alone.
            None: not computed.
        kept: Return the ids that `top_k`, `top_p` and `min_p` kept at each step.
        rule: Draws in place of the engine: a pure, traceable function of the warped logits f32[V]
            (-inf is cut) and a key that returns the id of a token that is not cut, i32[]. It
            compiles once, in the call that brings it, which refuses one that cannot run. Pass the
            same function to several calls, not a new lambda to each. `Completion.sampled_logprobs`
            are then NaN: a rule does not tell its distribution.
        adapter: Id of a LoRA adapter, for an engine with `adapters`. None: the base model.
        cache_salt: Cached prefixes are shared only by requests with the same salt, so that neither
            `cached_tokens` nor the time tells a tenant the prompts of others. None: no salt.
        deadline_s: Seconds from the call on, waiting included, after which the request ends with
            `finish_reason="deadline"`.
        priority: Lower runs earlier: it is taken from the queue first, and takes rows and cache
            from running requests of larger numbers. Among equal numbers, requests of streams come
            before those of other calls. Nothing is promised to a request while earlier ones come.

    Raises:
        ValueError: An option is out of range.
        TypeError: An option has another type.
    """

    max_tokens: int = 16
    temperature: int | float = 1.0
    top_k: int | None = None
    top_p: int | float = 1.0
    min_p: int | float = 0.0
    repetition_penalty: int | float = 1.0
    frequency_penalty: int | float = 0.0
    presence_penalty: int | float = 0.0
    logit_bias: Mapping[int, int | float] = dataclasses.field(default_factory=dict)
    min_tokens: int = 0
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    kept: bool = False
    rule: Rule | None = None
    adapter: int | None = None
    cache_salt: str | None = None
    deadline_s: int | float | None = None
    priority: int = 0

    def __post_init__(self) -> None:
        for name, (kind, holds, must, use) in _RANGES.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if isinstance(value, bool) or not isinstance(value, kind):
                raise TypeError(f"{name} must be {must}, got {name}={value!r}. Use {use}.")
            if not holds(value):
                raise ValueError(f"{name} must be {must}, got {name}={value!r}. Use {use}.")
            object.__setattr__(self, name, _plain(value))
        for name in ("ignore_eos", "skip_special_tokens", "kept"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TypeError(
                    f"{name} must be True or False, got {name}={value!r}. Use {name}=True."
                )
        object.__setattr__(self, "stop", _texts(self.stop))
        object.__setattr__(self, "stop_token_ids", _ids(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _bias(self.logit_bias))
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens must be at most max_tokens, got min_tokens={self.min_tokens} and "
                f"max_tokens={self.max_tokens}. Raise max_tokens."
            )
        salt = self.cache_salt
        if salt is not None and (not isinstance(salt, str) or not salt):
            raise (ValueError if salt == "" else TypeError)(
                f"cache_salt must be a text with at least one character, or None, got cache_salt="
                f"{salt!r}. Use None for prefixes that all share."
            )
        if self.rule is not None and not callable(self.rule):
            raise TypeError(
                f"rule must be a function of (warped logits, key), got rule={self.rule!r}. Pass "
                "the function itself."
            )


def fold_seed(seed: int, *, prompt: int = 0, completion: int = 0) -> int:
    """Returns the seed of one completion of one of several prompts with one `Sampling.seed`.

    It is `seed` for the first completion of the first prompt. The others are NumPy's
    `SeedSequence(seed, spawn_key=(prompt, completion))`, so near seeds share none of them.

    Args:
        seed: Seed of the options, in [0, 2**64).
        prompt: Index of the prompt, from 0.
        completion: Index of the completion of this prompt, from 0.

    Example:

        >>> from dovetail_infer import fold_seed
        >>> fold_seed(7), fold_seed(7, prompt=1)
        (7, 23751027488930731)
    """
    if prompt == completion == 0:
        return seed
    folded = np.random.SeedSequence(seed, spawn_key=(prompt, completion))
    return int(folded.generate_state(1, np.uint64)[0])


_OPTIONAL = {"top_k", "seed", "logprobs", "prompt_logprobs", "adapter", "deadline_s"}
# Of each option: its type, its range, both in words, and advice.
_RANGES: dict[str, tuple[Any, Callable[[Any], bool], str, str]] = {
    "max_tokens": (numbers.Integral, lambda x: x >= 1, "an integer >= 1", "max_tokens=128"),
    "temperature": (
        numbers.Real,
        lambda x: x == 0 or _LEAST <= x <= _LARGEST,
        "a float32 >= 0",
        "0 for greedy",
    ),
    "top_k": (
        numbers.Integral,
        lambda x: 1 <= x < 2**31,
        "an integer >= 1, or None",
        "None for all tokens",
    ),
    "top_p": (
        numbers.Real,
        lambda x: _LEAST <= x <= 1,
        "a float32 in (0, 1]",
        "1.0 for all tokens, top_k=1 for the likeliest",
    ),
    "min_p": (numbers.Real, lambda x: 0 <= x <= 1, "in [0, 1]", "0.0 for all tokens"),
    "repetition_penalty": (
        numbers.Real,
        lambda x: _LEAST <= x <= _LARGEST,
        "a float32 > 0",
        "1.0 for no penalty",
    ),
    "frequency_penalty": (
        numbers.Real,
        lambda x: abs(x) <= _LARGEST,
        "a finite float32",
        "0.0 for no penalty",
    ),
    "presence_penalty": (
        numbers.Real,
        lambda x: abs(x) <= _LARGEST,
        "a finite float32",
        "0.0 for no penalty",
    ),
    "min_tokens": (numbers.Integral, lambda x: x >= 0, "an integer >= 0", "0 for no minimum"),
    "seed": (
        numbers.Integral,
        lambda x: 0 <= x < 2**64,
        "an integer in [0, 2**64), or None",
        "None for a new one",
    ),
    "logprobs": (numbers.Integral, lambda x: x >= 0, "an integer >= 0, or None", "None for none"),
    "prompt_logprobs": (
        numbers.Integral,
        lambda x: x >= 0,
        "an integer >= 0, or None",
        "None for none",
    ),
    "adapter": (
        numbers.Integral,
        lambda x: x >= 0,
        "an integer >= 0, or None",
        "None for the base model",
    ),
    "deadline_s": (
        numbers.Real,
        lambda x: x > 0,
        "a number of seconds > 0, or None",
        "None for none",
    ),
    "priority": (numbers.Integral, lambda _: True, "an integer", "-1 to run before the default"),
}


def _plain(value: Any) -> int | float:
    """Returns a number of NumPy as one of Python."""
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def _texts(stop: Any) -> tuple[str, ...]:
    texts = (stop,) if isinstance(stop, str) else stop
    sequence = isinstance(texts, Collection) and not isinstance(texts, bytes)
    if not sequence or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(
            f"stop must hold texts with at least one character, got stop={stop!r}. Use stop=() "
            "for none."
        )
    return tuple(texts)


def _ids(ids: Any) -> tuple[int, ...]:
    if isinstance(ids, str) or not isinstance(ids, Collection) or not all(map(_is_id, ids)):
        raise ValueError(
            f"stop_token_ids must hold integers >= 0, got stop_token_ids={ids!r}. Use stop for "
            "texts."
        )
    return tuple(int(i) for i in ids)


def _bias(bias: Any) -> dict[int, float]:
    right = isinstance(bias, Mapping) and all(
        _is_id(i) and isinstance(x, numbers.Real) and (x == -math.inf or abs(float(x)) <= _LARGEST)
        for i, x in bias.items()
    )
    if not right:
        raise ValueError(
            "logit_bias must map token ids to finite float32s or -inf, got logit_bias="
            f"{bias!r}. Use {{token: -math.inf}} to ban a token."
        )
    return {int(i): float(x) for i, x in bias.items()}


def _is_id(i: Any) -> bool:
    return hasattr(i, "__index__") and not isinstance(i, bool) and i >= 0

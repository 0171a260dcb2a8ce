# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Options of a request as NumPy arrays of a step, and their checks against an engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from jaxtyping import Int, UInt32

from dovetail_infer.completion import Kept
from dovetail_infer.sampling import Sampling
from dovetail_infer.step.batch import RowOptions, SlotState
from dovetail_infer.types import NamingTokenizer, Tokenizer

_WORD = 32  # bits of a word of `Results.kept`


def check_request(
    sampling: Sampling,
    *,
    vocab_size: int,
    max_logprobs: int,
    adapters: Collection[int] = (),
    tokenizer: Tokenizer | None = None,
) -> None:
    """Checks the options that depend on the engine.

    Args:
        sampling: Options of the request.
        vocab_size: Number of logits of the model.
        max_logprobs: Largest number of likeliest tokens that the engine returns.
        adapters: Ids of the loaded LoRA adapters.
        tokenizer: The tokenizer of the engine.

    Raises:
        ValueError: The engine does not have what an option names.
    """
    for name in ("logit_bias", "stop_token_ids"):
        wrong = [i for i in getattr(sampling, name) if i >= vocab_size]
        if wrong:
            raise ValueError(
                f"{name} must hold ids below the model's {vocab_size} tokens, got {name} with "
                f"{wrong[0]}. Use ids of the model's tokenizer."
            )
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(sampling, name)
        limit = min(max_logprobs, vocab_size)
        if count is not None and count > limit:
            raise ValueError(
                f"{name} must be at most {limit} for this engine, got {name}={count}. Use {limit}, "
                "or an Engine with a larger max_logprobs."
            )
    if sampling.adapter is not None and sampling.adapter not in adapters:
        loaded = ", ".join(map(str, adapters)) or "none"
        raise ValueError(
            f"adapter must be one of the engine's loaded adapters ({loaded}), got adapter="
            f"{sampling.adapter}. Use None for the base model."
        )
    if sampling.stop and tokenizer is None:
        raise ValueError(
            f"stop needs a tokenizer, got stop={sampling.stop!r} for an engine without one. Use "
            "stop_token_ids, or Engine(tokenizer=...)."
        )
    if not sampling.skip_special_tokens and not isinstance(tokenizer, NamingTokenizer):
        raise ValueError(
            "skip_special_tokens=False needs a tokenizer with decode_with_specials, got "
            f"tokenizer={tokenizer!r:.100}. Use dovetail_data.Pretrained, or True."
        )


def needs_full(sampling: Sampling) -> bool:
    """Returns whether a step with this request needs more than temperature and filters."""
    return (
        bool(sampling.logit_bias)
        or sampling.min_tokens > 0
        or sampling.repetition_penalty != 1
        or sampling.frequency_penalty != 0
        or sampling.presence_penalty != 0
        or sampling.logprobs is not None
        or sampling.kept
        or sampling.rule is not None
    )


def key_data(seed: int) -> UInt32[np.ndarray, "2"]:
    """Returns the data of `jax.random.key(seed, impl="threefry2x32")` with 64-bit seeds."""
    return np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)


def slot_state(
    sampling: Sampling,
    *,
    prompt: Sequence[int] | Int[np.ndarray, " P"],
    output: Sequence[int] | Int[np.ndarray, " T"],
    vocab_size: int,
    eos_ids: Sequence[int],
) -> SlotState:
    """Returns the state of a slot when its request is admitted, or admitted again.

    Args:
        sampling: Options of the request.
        prompt: Ids of the prompt.
        output: Ids drawn so far.
        vocab_size: V.
        eos_ids: Ids that end a completion, unless `Sampling.ignore_eos`.
    """
    bias = np.zeros(vocab_size, np.float32)
    bias[list(sampling.logit_bias)] = list(sampling.logit_bias.values())
    seen, stops = np.zeros((2, vocab_size), bool)
    seen[np.asarray(prompt, np.int64)] = True
    stops[[*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_ids)]] = True
    counts = np.bincount(np.asarray(output, np.int64), minlength=vocab_size)
    return SlotState(bias=bias, prompt=seen, stops=stops, counts=counts.astype(np.int32))


def row_options(
    samplings: Sequence[Sampling],
    *,
    seeds: Sequence[int],
    outputs: Sequence[int],
) -> RowOptions:
    """Returns the options of the rows of a step.

    Args:
        samplings: Options of each row's request.
        seeds: Seed of each request.
        outputs: Number of tokens that each request has drawn before.
    """

    def column(name: str, dtype: type) -> np.ndarray:
        return np.array([getattr(s, name) for s in samplings], dtype)

    bans = [n < s.min_tokens for s, n in zip(samplings, outputs, strict=True)]
    return RowOptions(
        temperature=column("temperature", np.float32),
        top_k=np.array([s.top_k or 0 for s in samplings], np.int32),
        top_p=column("top_p", np.float32),
        min_p=column("min_p", np.float32),
        repetition_penalty=column("repetition_penalty", np.float32),
        frequency_penalty=column("frequency_penalty", np.float32),
        presence_penalty=column("presence_penalty", np.float32),
        bans=np.array(bans, bool),
        ruled=np.array([s.rule is not None for s in samplings], bool),
        keys=np.array([key_data(seed) for seed in seeds], np.uint32).reshape(-1, 2),
    )


def kept_of(
    bits: Sequence[UInt32[np.ndarray, " W"]], *, top_k: int | None, vocab_size: int
) -> Kept:
    """Returns the tokens that the filters kept at each step.

    Args:
        bits: Words of `Results.kept` of each step.
        top_k: `Sampling.top_k`.
        vocab_size: V.
    """
    words = -(-vocab_size // _WORD)
    table = np.array(bits, np.uint32).reshape(-1, words)
    if top_k is None:
        return Kept(tokens=None, bits=table)
    octets = table.astype("<u4").view(np.uint8)
    kept = np.unpackbits(octets, axis=1, count=vocab_size, bitorder="little")
    ids = np.nonzero(kept)[1]
    counts = kept.sum(axis=1, dtype=np.int64)
    tokens = np.full((len(table), counts.max(initial=0)), -1, np.int32)
    tokens[np.arange(tokens.shape[1])[None] < counts[:, None]] = ids
    return Kept(tokens=tokens, bits=None)

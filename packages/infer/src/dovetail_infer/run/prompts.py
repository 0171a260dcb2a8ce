# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Prompts, as text or token ids, to checked lists of ids."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from dovetail_infer.types import Tokenizer

Prompt = str | Sequence[int] | np.ndarray | jax.Array


def prompt_ids(
    prompts: Sequence[Prompt],
    *,
    tokenizer: Tokenizer | None,
    vocab_size: int,
    max_tokens: int,
    limit: str,
) -> list[list[int]]:
    """Returns the token ids of each prompt. A text begins with the tokenizer's bos, if it has one.

    Args:
        prompts: Texts or token ids.
        tokenizer: For texts.
        vocab_size: Number of token ids of the model.
        max_tokens: Largest number of tokens of a prompt.
        limit: The reason for `max_tokens`, for its error.

    Raises:
        ValueError: A prompt is empty or too long, has an id outside the vocabulary, or is a text
            without a tokenizer.
        TypeError: `prompts` is one prompt, or a prompt has neither a text nor integers.
    """
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Sequence):
        raise TypeError(
            f"prompts must be a list of prompts, got {type(prompts).__name__}. Use [prompt] for "
            "one, list(prompts) for several."
        )
    texts = [i for i, prompt in enumerate(prompts) if isinstance(prompt, str)]
    if texts and tokenizer is None:
        raise ValueError(
            "text prompts need a tokenizer, got tokenizer=None and a text. Use "
            "Engine(model, tokenizer=...), or pass token ids."
        )
    ids: list[list[int]] = [[] for _ in prompts]
    if tokenizer is not None:
        bos = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
        encodings = tokenizer.encode([str(prompts[i]) for i in texts])
        for i, encoding in zip(texts, encodings, strict=True):
            ids[i] = [*bos, *np.asarray(encoding.ids).tolist()]
    for i, prompt in enumerate(prompts):
        if not isinstance(prompt, str):
            ids[i] = _integers(prompt, i)
        _check_length(ids[i], i, max_tokens=max_tokens, limit=limit)
        _check_ids(ids[i], i, vocab_size=vocab_size, tokenizer=tokenizer)
    return ids


def _integers(prompt: object, i: int) -> list[int]:
    try:
        array = np.asarray(prompt)
    except ValueError:  # rows of unequal lengths
        array = np.array(None)
    if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise TypeError(
            f"a prompt must be a text or a list of token ids, got prompts[{i}] of dtype "
            f"{array.dtype} and shape {array.shape}. Use np.asarray(ids, np.int32)."
        )
    return array.tolist()


def _check_length(ids: list[int], i: int, *, max_tokens: int, limit: str) -> None:
    if not ids:
        raise ValueError(
            f"a prompt must have at least one token, got none in prompts[{i}]. Begin it with the "
            "tokenizer's bos id."
        )
    if len(ids) > max_tokens:
        raise ValueError(
            f"a prompt must have at most {max_tokens} tokens ({limit}), got {len(ids)} in "
            f"prompts[{i}]. Shorten it, or build the engine with a larger max_length."
        )


def _check_ids(ids: list[int], i: int, *, vocab_size: int, tokenizer: Tokenizer | None) -> None:
    if min(ids) < 0 or max(ids) >= vocab_size:
        wrong = next(x for x in ids if not 0 <= x < vocab_size)
        raise ValueError(
            f"token ids must be in [0, {vocab_size}), the model's vocabulary, got {wrong}"
            f"{_named(wrong, tokenizer)} in prompts[{i}]. Use the tokenizer that the model was "
            "trained with, or leave that token out."
        )


def _named(token: int, tokenizer: Tokenizer | None) -> str:
    """Returns the text of an id in brackets, if a tokenizer knows it."""
    if tokenizer is None or not 0 <= token < tokenizer.vocab_size:
        return ""
    if token == tokenizer.bos_id:
        return " (the tokenizer's bos)"
    text = tokenizer.decode([token])
    return f" ({text!r})" if text else " (a special token)"

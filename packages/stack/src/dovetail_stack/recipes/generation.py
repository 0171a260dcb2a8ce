# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Continues one prompt token by token, with a contiguous key-value cache.

For looking at a model: one row at a time, no batching. The prompt is padded on the right to a
multiple of `BUCKET`, so a handful of programs serves every length. Padding writes to later cache
positions than any query reads, and is overwritten before a query gets there.
"""

import functools
from collections.abc import Iterator

import jax
import numpy as np
from flax import nnx

from dovetail_data import Tokenizer
from dovetail_kernels import sample
from dovetail_models import Decoder, dense_kv

BUCKET = 64  # tokens; the smallest cache, and the step by which prompts and caches grow


def generate(
    model: Decoder,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    max_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
) -> Iterator[str]:
    """Yields the continuation of `prompt` in pieces of whole characters.

    Ends after `max_tokens` tokens, at the tokenizer's end-of-text, which is not yielded, or at the
    last position of a model with learned positions (GPT-2).

    Args:
        model: Any decoder.
        tokenizer: Its tokenizer.
        prompt: Text to continue.
        max_tokens: Largest number of new tokens.
        temperature: Divides the logits; 0 takes the most likely token.
        top_p: Samples among the most likely tokens whose probabilities sum to at least this value
            (Holtzman et al. 2019, arXiv:1904.09751, section 3.1).
        seed: Seed of the sampling.

    Raises:
        ValueError: An option is out of range, the tokenizer has more ids than the model, or the
            prompt fills all learned positions.
    """
    _check(model, tokenizer, max_tokens=max_tokens, temperature=temperature, top_p=top_p)
    ids = _encode(tokenizer, prompt)
    if model.config.learned_positions:
        if len(ids) >= model.config.max_length:
            raise ValueError(
                f"the prompt must leave one of the model's {model.config.max_length} positions, "
                f"got {len(ids)} tokens: give a shorter prompt"
            )
        max_tokens = min(max_tokens, model.config.max_length - len(ids))
    stream = _tokens(
        model, ids, max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed
    )
    return _pieces(tokenizer, stream)


def _check(
    model: Decoder, tokenizer: Tokenizer, *, max_tokens: int, temperature: float, top_p: float
) -> None:
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got max_tokens={max_tokens}: try 128")
    if not 0 <= temperature < float("inf"):
        raise ValueError(
            f"temperature must be 0 (greedy) or positive and finite, got "
            f"temperature={temperature}: try 1.0"
        )
    if not 0 < top_p <= 1:
        raise ValueError(
            f"top_p must lie in (0, 1], got top_p={top_p}: pass top_p=1 to keep every token"
        )
    check_vocabulary(model.config.vocab_size, tokenizer)


def check_vocabulary(vocab_size: int, tokenizer: Tokenizer) -> None:
    """Raises ValueError if the tokenizer has more ids than a model of `vocab_size`."""
    if tokenizer.vocab_size > vocab_size:
        raise ValueError(
            f"the tokenizer has {tokenizer.vocab_size} ids and the model {vocab_size}: use the "
            "tokenizer.json that the model was trained with"
        )


def _encode(tokenizer: Tokenizer, prompt: str) -> list[int]:
    (encoding,) = tokenizer.encode([prompt])
    start = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    ids = [*start, *np.asarray(encoding.ids).tolist()]
    if not ids:
        raise ValueError(
            "the prompt has no token and the tokenizer no beginning-of-text: give a longer prompt"
        )
    return ids


def _tokens(
    model: Decoder,
    ids: list[int],
    *,
    max_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
) -> Iterator[int]:
    graphdef, state = nnx.split(model)
    kv = dense_kv(model.config, rows=1, length=_bucket(len(ids) + max_tokens))
    width = _bucket(len(ids))
    if model.config.learned_positions:  # padding has positions too
        width = min(width, model.config.max_length)
    tokens = np.zeros((1, width), np.int32)
    tokens[0, : len(ids)] = ids
    positions = np.arange(tokens.shape[1], dtype=np.int32)[None]
    last = len(ids) - 1
    # `sample` takes threefry keys alone, and a program may have chosen others as its default.
    for key in jax.random.split(jax.random.key(seed, impl="threefry2x32"), max_tokens):
        token, kv = _step(
            graphdef,
            state,
            tokens,
            positions,
            kv,
            last=last,
            key=key,
            temperature=temperature,
            top_p=top_p,
        )
        if int(token[0]) < 0:
            raise ValueError(
                "the logits of a model must be finite, got NaN or infinity after "
                f"{positions[0, last] + 1} tokens: check its weights"
            )
        yield int(token[0])
        tokens, positions, last = token[None], positions[:, last : last + 1] + 1, 0


def _bucket(tokens: int) -> int:
    return -(-tokens // BUCKET) * BUCKET


@functools.partial(jax.jit, static_argnames="graphdef", donate_argnames="kv")
def _step(graphdef, state, tokens, positions, kv, *, last, key, temperature, top_p):
    """Runs `tokens` i32[1,T] and draws the token after index `last`, i32[1]; -1 for NaN logits."""
    model = nnx.merge(graphdef, state)
    x, kv = model.features(tokens, positions=positions, kv=kv)
    logits = model.head(x[:, last])
    return sample(logits, keys=key[None], temperature=temperature, top_p=top_p), kv


def _pieces(tokenizer: Tokenizer, stream: Iterator[int]) -> Iterator[str]:
    """Decodes ids as they come. Holds back a character until all of its bytes are there."""
    ids: list[int] = []
    shown = 0
    for token in stream:
        if token == tokenizer.eos_id:
            break
        ids.append(token)
        text = tokenizer.decode(ids)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            yield text[shown:]
            shown = len(text)
    if rest := tokenizer.decode(ids)[shown:]:
        yield rest

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Models, prompts and engines that several tests share."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dovetail_infer import Engine
from dovetail_infer.testing import ByteTokenizer, TinyDecoder

VOCAB = 61
# Few and small programs: 32 tokens and 4 rows at most.
SMALL: dict[str, Any] = {"page_size": 4, "step_tokens": 32, "max_rows": 4, "max_length": 64}
SMALL |= {"kv_bytes": 2**20}


@functools.cache
def decoder(windows: tuple[int | None, ...] = (None,), *, seed: int = 0) -> TinyDecoder:
    """A decoder whose greedy completions differ from prompt to prompt."""
    return TinyDecoder(vocab_size=VOCAB, windows=windows, rngs=nnx.Rngs(seed))


def byte_decoder() -> TinyDecoder:
    """A decoder of the vocabulary of `ByteTokenizer`."""
    return TinyDecoder(rngs=nnx.Rngs(3))


def engine(model: nnx.Module | None = None, **options: Any) -> Engine:
    """A small engine of token ids."""
    return Engine(decoder() if model is None else model, **{**SMALL, **options})


def text_engine(model: nnx.Module | None = None, **options: Any) -> Engine:
    """A small engine of texts."""
    model = byte_decoder() if model is None else model
    return Engine(model, tokenizer=ByteTokenizer(), **{**SMALL, **options})


def prompts(count: int, *, seed: int = 0, longest: int = 40) -> list[list[int]]:
    """Random prompts of ragged lengths, some with equal beginnings."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(0, VOCAB, longest).tolist()
    made = []
    for i in range(count):
        own = rng.integers(0, VOCAB, int(rng.integers(1, longest))).tolist()
        common = int(rng.integers(0, longest)) if i % 3 == 0 else 0
        made.append((shared[:common] + own)[:longest])
    return made


@functools.cache
def _whole(model: TinyDecoder) -> Any:
    graph, state = nnx.split(model)
    return jax.jit(lambda ids: nnx.merge(graph, state)(ids))


def logits(model: TinyDecoder, ids: list[int], *, length: int = 64) -> np.ndarray:
    """Logits [T, V] of a whole sequence, by the model's own attention and without a cache."""
    padded = np.zeros((1, length), np.int32)
    padded[0, : len(ids)] = ids  # causal: padding behind changes nothing
    return np.asarray(_whole(model)(jnp.asarray(padded)))[0, : len(ids)].astype(np.float64)


def logprobs(model: TinyDecoder, ids: list[int]) -> np.ndarray:
    """Log-probabilities [T, V] in float64."""
    z = logits(model, ids)
    z = z - z.max(axis=1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=1, keepdims=True))


def greedy(model: TinyDecoder, ids: list[int], count: int) -> list[int]:
    """The most likely continuation, one whole forward pass for each token."""
    ids = list(ids)
    for _ in range(count):
        ids.append(int(logits(model, ids)[-1].argmax()))
    return ids[-count:]


class Failing:
    """An executor whose steps fail where `when(batch)` says so: at the start, or when read."""

    def __init__(self, executor, when, *, at="read"):
        self._executor, self._when, self._at = executor, when, at

    def __getattr__(self, name):
        return getattr(self._executor, name)

    def dispatch(self, batch, **options):
        fails = self._when(batch)
        if fails and self._at == "dispatch":
            self._executor._state = None  # a failed call has taken the donated cache
            raise RuntimeError("injected")
        handle = self._executor.dispatch(batch, **options)
        return _FailingHandle() if fails else handle


class _FailingHandle:
    def read(self):
        raise RuntimeError("injected")

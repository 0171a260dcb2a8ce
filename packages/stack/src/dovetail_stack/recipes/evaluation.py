# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Measures of text: rows as training measures them, whole documents, and generated answers."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Int

from dovetail_data import Corpus
from dovetail_infer import Engine, Sampling
from dovetail_models import Decoder
from dovetail_stack.recipes.fitting import attention
from dovetail_train import Sampler, lm_loss, rolling_loglikelihood


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsScore:
    """The likelihood of packed rows.

    Attributes:
        rows: Number of rows.
        tokens: Number of targets, weighted by the mask.
        nats: Sum of -log p of the targets.
        text_bytes: Bytes of text of the targets; 0 if the tokenizer does not tell them.
    """

    rows: int
    tokens: float
    nats: float
    text_bytes: float

    @property
    def loss(self) -> float:
        """Nats per token, the `eval/loss` of training."""
        return self.nats / self.tokens

    @property
    def bits_per_byte(self) -> float | None:
        """The `eval/bits_per_byte` of training; None without bytes."""
        return self.nats / math.log(2) / self.text_bytes if self.text_bytes else None


def score_rows(
    model: Decoder,
    batches: Iterable[Mapping[str, np.ndarray]],
    sizes: Int[np.ndarray, " V"] | None,
    *,
    progress: Callable[[int], object] = lambda rows: None,
) -> RowsScore:
    """Returns the likelihood of rows, one batch in memory at a time.

    Args:
        model: Any decoder.
        batches: Batches of `dovetail_data.pack`. Rows that fill a batch up have mask 0.
        sizes: Bytes of text per id, from `dovetail_data.token_bytes`. None: not known.
        progress: Receives the number of rows of each finished batch.

    Raises:
        ValueError: No target counts.
    """
    graph, state = nnx.split(model)
    loss = lm_loss(attention=attention)

    @jax.jit
    def sums(state: nnx.State, batch: Mapping[str, np.ndarray]) -> Any:
        module = nnx.merge(graph, state)
        module.eval()
        return loss(module, batch, key=jax.random.key(0))

    rows, totals, text_bytes = 0, np.zeros(2), 0.0
    for batch in batches:
        totals += np.asarray(jax.device_get(sums(state, batch)), np.float64)
        counted = int(np.any(batch["mask"] > 0, axis=1).sum())
        if sizes is not None:
            text_bytes += float((batch["mask"] * sizes[batch["targets"]]).sum(dtype=np.float64))
        rows += counted
        progress(counted)
    if not totals[1]:
        raise ValueError(f"rows must have a target that counts, got rows={rows}: pass other text")
    return RowsScore(rows=rows, nats=totals[0], tokens=totals[1], text_bytes=text_bytes)


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


def sampler(engine: Engine, *, seed: int = 0, sampling: Sampling | None = None) -> Sampler:
    """Returns a `dovetail_train.Sampler`, for `LMEval(sampler=)`.

    Args:
        engine: An engine with the evaluated weights and their tokenizer.
        seed: Seed of each call, see `dovetail_infer.Engine.generate`.
        sampling: Replaces the temperature of each call, such as `sampling_of(directory)`. None:
            all tokens are drawn from at that temperature.
    """

    def sample(
        prompts: Sequence[Sequence[int]],
        *,
        max_tokens: int,
        temperature: float,
        until: Sequence[str],
    ) -> list[list[int]]:
        base = Sampling(temperature=temperature) if sampling is None else sampling
        stop = [*filter(None, until)]
        draws = dataclasses.replace(base, seed=seed, max_tokens=max_tokens, stop=stop)
        return [result.tokens.tolist() for result in engine.generate(prompts, draws)]

    return sample

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conformance of draws: for any `Operations`, against the definitions in float64.

Each case draws a few thousand tokens of one request, each with its own seed. Their frequencies are
compared with the probabilities by a chi-square statistic, and what comes with each token (its
log-probabilities, the mass and the kept tokens) with its definition. Seeds are fixed, so operations
pass each time or never.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float32, Float64

from dovetail_infer.sampling import Sampling
from dovetail_infer.step import logits as device
from dovetail_infer.step import slots
from dovetail_infer.types import Operations

VOCAB_SIZE = 37
EOS_ID = 5
_PROMPT = (1, 2, 3, 3, 30, 31, 32, 33)
_OUTPUT = (2, 4, 4, 4, 6, 30, 30, 5)
_POSITION = 1000
_DRAWS = 3000
_RARE = 20  # expected draws: tokens with fewer are one class
_DEVIATIONS = 4.75  # of a normal number; right draws exceed it with probability 1e-6
# 37 terms and about ten roundings of numbers below 10, in float32.
_TOLERANCE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}

_PENALTIES: dict[str, Any] = {
    "repetition_penalty": 1.7,
    "frequency_penalty": 0.4,
    "presence_penalty": 0.6,
}
_FILTERS: dict[str, Any] = {"top_k": 20, "top_p": 0.9, "min_p": 0.02}
CASES: Mapping[str, Sampling] = {
    "plain": Sampling(),
    "temperature": Sampling(temperature=0.6),
    "hot": Sampling(temperature=2.5),
    "greedy": Sampling(temperature=0),
    "top_k": Sampling(top_k=7),
    "top_k of 1": Sampling(top_k=1),
    "top_k above V": Sampling(top_k=1000),
    "top_p": Sampling(top_p=0.7),
    "min_p": Sampling(min_p=0.1),
    "filters": Sampling(temperature=1.4, **_FILTERS),
    "repetition_penalty": Sampling(repetition_penalty=1.5),
    "repetition_penalty below 1": Sampling(repetition_penalty=0.8),
    "frequency_penalty": Sampling(frequency_penalty=0.7),
    "presence_penalty": Sampling(presence_penalty=1.2),
    "negative penalties": Sampling(frequency_penalty=-0.3, presence_penalty=-0.5),
    "penalties, greedy": Sampling(temperature=0, logit_bias={4: 5.0}, **_PENALTIES),
    "logit_bias": Sampling(logit_bias={0: 3.0, 4: -2.0, 10: -math.inf, 11: 0.5}),
    "min_tokens": Sampling(min_tokens=9, stop_token_ids=[1, 20]),
    "min_tokens reached": Sampling(min_tokens=8, stop_token_ids=[1, 20]),
    "ignore_eos": Sampling(min_tokens=9, stop_token_ids=[1, 20], ignore_eos=True),
    "kept": Sampling(kept=True, top_p=0.5, logprobs=4),
    "all": Sampling(
        temperature=1.3,
        logit_bias={0: 2.0, 10: -math.inf, 30: 1.0},
        min_tokens=16,
        stop_token_ids=[20],
        logprobs=4,
        **_PENALTIES,
        **_FILTERS,
    ),
}


class Expected(NamedTuple):
    """Results by definition, in float64.

    Attributes:
        logprobs: log softmax(logits).
        probabilities: Of each token to be drawn.
        kept: Tokens that the filters keep.
        log_mass: Log of the probability that they keep.
    """

    logprobs: Float64[np.ndarray, " V"]
    probabilities: Float64[np.ndarray, " V"]
    kept: Bool[np.ndarray, " V"]
    log_mass: float


def expected(
    logits: Float32[np.ndarray, " V"],
    sampling: Sampling,
    *,
    prompt: Sequence[int],
    output: Sequence[int],
    eos_id: int | None,
) -> Expected:
    """Computes the distribution of the next token.

    Args:
        logits: Logits of the model.
        sampling: Options.
        prompt: Ids of the prompt.
        output: Ids drawn before.
        eos_id: The id that ends a completion.
    """
    z = adjusted(logits, sampling, prompt=prompt, output=output, eos_id=eos_id)
    z = z - z.max()
    if sampling.temperature == 0:
        kept = np.arange(len(z)) == z.argmax()
        return Expected(_log_softmax(logits), kept.astype("f8"), kept, 0.0)
    z = z / sampling.temperature
    least = np.sort(z)[::-1][min(sampling.top_k or len(z), len(z)) - 1]
    kept = z >= least
    if sampling.top_p < 1:
        p = np.where(kept, np.exp(z), 0)
        order = np.argsort(-p, kind="stable")
        before = np.cumsum(p[order]) - p[order]
        kept = z >= z[order][before < sampling.top_p * p.sum()].min()
    kept &= (z > -np.inf) & (np.exp(z) >= sampling.min_p)
    weights = np.exp(z)
    mass = weights[kept].sum()
    return Expected(
        _log_softmax(logits),
        np.where(kept, weights, 0) / mass,
        kept,
        math.log(mass / weights.sum()),
    )


def adjusted(
    logits: Float32[np.ndarray, " V"],
    sampling: Sampling,
    *,
    prompt: Sequence[int],
    output: Sequence[int],
    eos_id: int | None,
) -> Float64[np.ndarray, " V"]:
    """Computes the logits after bias, bans and penalties.

    Args:
        logits: Logits of the model.
        sampling: Options.
        prompt: Ids of the prompt.
        output: Ids drawn before.
        eos_id: The id that ends a completion.
    """
    z = logits.astype("f8")
    for token, bias in sampling.logit_bias.items():
        z[token] += bias
    if len(output) < sampling.min_tokens:
        z[list(sampling.stop_token_ids)] = -np.inf
        if eos_id is not None and not sampling.ignore_eos:
            z[eos_id] = -np.inf
    for token in {*prompt, *output}:
        penalty = sampling.repetition_penalty
        z[token] = z[token] / penalty if z[token] > 0 else z[token] * penalty
    for token in set(output):
        z[token] -= sampling.frequency_penalty * list(output).count(token)
        z[token] -= sampling.presence_penalty
    return z


def check_sampling(operations: Operations, *, cases: Mapping[str, Sampling] = CASES) -> None:
    """Checks that draws with these operations are those of the definitions.

    Args:
        operations: Gives `warp_logits` and `sample`.
        cases: Options by name.

    Raises:
        AssertionError: A case fails. The message names it.
    """
    for name, sampling in cases.items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        # Multiples of 1/4, so that many are equal.
        logits = np.round(4 * 1.5 * rng.normal(size=VOCAB_SIZE)).astype("f4") / 4
        try:
            _check(operations, sampling, logits)
        except AssertionError as error:
            raise AssertionError(f"case {name!r}: {error}") from error


def _check(operations: Operations, sampling: Sampling, logits: np.ndarray) -> None:
    texts: dict[str, Any] = {"prompt": _PROMPT, "output": _OUTPUT, "eos_id": EOS_ID}
    right = expected(logits, sampling, **texts)
    kind = "full" if slots.needs_full(sampling) else "plain"
    drawn = draws(operations, sampling, logits, kind=kind)
    tokens = np.asarray(drawn.tokens)
    assert right.kept[tokens].all(), f"cut tokens are drawn: {set(tokens[~right.kept[tokens]])}"
    deviation = chi_square(tokens, right.probabilities)
    assert deviation < _DEVIATIONS, f"frequencies deviate by {deviation:.1f} sigma"
    close = functools.partial(np.testing.assert_allclose, **_TOLERANCE)
    close(drawn.logprobs, right.logprobs[tokens])
    close(drawn.sampled_logprobs, np.log(right.probabilities[tokens]))
    close(drawn.log_mass, np.full(len(tokens), right.log_mass))
    if right.kept.sum() == np.isfinite(adjusted(logits, sampling, **texts)).sum():
        assert (drawn.log_mass == 0).all(), "log_mass must be 0 where nothing is cut"
    if drawn.kept is not None:
        kept = slots.kept_of(list(drawn.kept[:2]), top_k=VOCAB_SIZE, vocab_size=VOCAB_SIZE)
        assert kept.tokens is not None
        np.testing.assert_array_equal(kept.tokens, [np.flatnonzero(right.kept)] * 2)


def draws(
    operations: Operations,
    sampling: Sampling,
    logits: Float32[np.ndarray, " V"],
    *,
    kind: device.Kind,
) -> device.Drawn:
    """Draws many tokens of one request, each with its own seed.

    Args:
        operations: Gives `warp_logits` and `sample`.
        sampling: Options.
        logits: Logits of the model.
        kind: Kind of the step.
    """
    state = slots.slot_state(
        sampling, prompt=_PROMPT, output=_OUTPUT, vocab_size=len(logits), eos_ids=[EOS_ID]
    )
    options = slots.row_options(
        [sampling] * _DRAWS,
        seeds=range(_DRAWS),
        outputs=[len(_OUTPUT)] * _DRAWS,
    )
    rows = device.Rows(
        *map(jnp.asarray, options),
        positions=jnp.full(_DRAWS, _POSITION, jnp.int32),
        slots=jnp.zeros(_DRAWS, jnp.int32),
        samples=jnp.ones(_DRAWS, bool),
    )
    table = jnp.broadcast_to(jnp.asarray(logits), (_DRAWS, len(logits)))
    drawn = _compiled(operations, kind)(
        table, rows, device.State(*(jnp.asarray(x)[None] for x in state))
    )
    return jax.tree.map(np.asarray, drawn)


@functools.cache
def _compiled(operations: Operations, kind: device.Kind) -> Callable[..., device.Drawn]:
    return jax.jit(functools.partial(device.draw, operations, kind=kind, top=4))


def chi_square(tokens: np.ndarray, probabilities: np.ndarray) -> float:
    """Returns how far frequencies are from probabilities, as a deviate of a normal distribution.

    Wilson and Hilferty (1931): the cube root of chi-square over its degrees of freedom is normal.
    """
    often = len(tokens) * probabilities
    seen = np.bincount(tokens, minlength=len(often)).astype("f8")
    rare = often < _RARE
    often = np.append(often[~rare], often[rare].sum())
    seen = np.append(seen[~rare], seen[rare].sum())
    likely = often > 0
    degrees = likely.sum() - 1
    if degrees == 0:
        return 0.0
    statistic = ((seen - often)[likely] ** 2 / often[likely]).sum()
    spread = 2 / (9 * degrees)
    return float(((statistic / degrees) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    z = logits.astype("f8") - logits.max()
    return z - np.log(np.exp(z).sum())

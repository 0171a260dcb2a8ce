# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Draws of a step: equal bits in any company, rows without a distribution, scores.

`tests/testing/test_sampling.py` compares the draws with their definition.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import forced_devices
import warm_start
from dovetail_infer import Sampling, reference
from dovetail_infer.step import logits, slots
from dovetail_infer.testing.sampling import CASES

PROMPT, OUTPUT, EOS_ID = (1, 2, 3, 7), (2, 4, 4, 5), 5
GREEDY, WARM = Sampling(temperature=0), Sampling()


def rows_of(
    samplings: Sequence[Sampling],
    *,
    vocab: int,
    seeds: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
) -> tuple[logits.Rows, logits.State]:
    """Rows with a slot each, in reverse order."""
    size = len(samplings)
    options = slots.row_options(
        samplings,
        seeds=seeds or range(size),
        outputs=[len(OUTPUT)] * size,
    )
    rows = logits.Rows(
        *map(jnp.asarray, options),
        positions=jnp.asarray(positions or [9] * size, jnp.int32),
        slots=jnp.arange(size, dtype=jnp.int32)[::-1],
        samples=jnp.ones(size, bool),
    )
    states = [
        slots.slot_state(s, prompt=PROMPT, output=OUTPUT, vocab_size=vocab, eos_ids=[EOS_ID])
        for s in samplings[::-1]
    ]
    return rows, logits.State(*(jnp.asarray(np.stack(x)) for x in zip(*states, strict=True)))


@functools.cache
def compiled(kind: logits.Kind, top: int = 3) -> Callable[..., Any]:
    return jax.jit(functools.partial(logits.draw, reference, kind=kind, top=top))


def random_logits(size: int, vocab: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=(size, vocab)) * 3, jnp.float32)


def bits(drawn: logits.Drawn, row: int) -> list[bytes]:
    return [np.asarray(x[row]).tobytes() for x in drawn[:4]]


@pytest.mark.thorough
@pytest.mark.parametrize("vocab", [37, 5001])
@pytest.mark.parameter("seed")
def test_a_row_has_the_same_bits_alone_and_in_company(vocab: int) -> None:
    samplings = [*CASES.values(), GREEDY, WARM]
    assert len(samplings) == 24
    z = random_logits(24, vocab)
    seeds, positions = list(range(100, 124)), list(range(1000, 1024))
    rows, state = rows_of(samplings, vocab=vocab, seeds=seeds, positions=positions)
    together = compiled("full")(z, rows, state)
    for i, sampling in enumerate(samplings):
        own, state_of_one = rows_of(
            [sampling], vocab=vocab, seeds=seeds[i : i + 1], positions=positions[i : i + 1]
        )
        for kind in ("full",) if slots.needs_full(sampling) else ("full", "plain"):
            alone = compiled(kind)(z[i : i + 1], own, state_of_one)
            assert alone.tokens[0] == together.tokens[i], (i, sampling, kind)
            # The same number of rows, of which the others are padding, at another place.
            place = jnp.array([23 - i])
            padded = jax.tree.map(
                lambda x, at=place: jnp.zeros_like(x, shape=(24, *x.shape[1:])).at[at].set(x), own
            )
            moved = jnp.zeros_like(z).at[place].set(z[i])
            among = compiled(kind)(
                moved, padded, jax.tree.map(lambda x: jnp.repeat(x, 24, axis=0), state_of_one)
            )
            assert bits(among, 23 - i) == bits(together, i), (i, sampling, kind)
    # The seeds and the positions decide: other ones draw otherwise.
    for other in (
        rows._replace(keys=rows.keys + jnp.uint32(1)),
        rows._replace(positions=rows.positions + 1),
    ):
        assert (compiled("full")(z, other, state).tokens != together.tokens).any()


@pytest.mark.thorough
def test_a_greedy_row_has_the_same_bits_beside_a_draw() -> None:
    z = random_logits(2, 1000)
    rows, _ = rows_of([GREEDY, GREEDY], vocab=1000)
    mixed, _ = rows_of([GREEDY, WARM], vocab=1000)
    alone, beside = (compiled("plain")(z, r, None) for r in (rows, mixed))
    assert bits(alone, 0) == bits(beside, 0)
    assert alone.tokens.tolist() == np.asarray(z).argmax(axis=1).tolist()
    assert alone.log_mass.tolist() == alone.sampled_logprobs.tolist() == [0, 0]


@dataclasses.dataclass(frozen=True)
class Counting:
    """The reference operations, which count their calls at run time."""

    calls: list[str]
    paged_attention: Callable[..., Any] = reference.paged_attention
    paged_write: Callable[..., Any] = reference.paged_write

    def warp_logits(self, z: jax.Array, **options: jax.Array) -> jax.Array:
        jax.debug.callback(lambda: self.calls.append("warp_logits"))
        return reference.warp_logits(z, **options)

    def sample(self, z: jax.Array, *, keys: jax.Array) -> jax.Array:
        jax.debug.callback(lambda: self.calls.append("sample"))
        return reference.sample(z, keys=keys)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["plain", "full"])
def test_a_greedy_step_neither_filters_nor_draws(kind: logits.Kind) -> None:
    calls: list[str] = []
    operations = Counting(calls)
    run = jax.jit(functools.partial(logits.draw, operations, kind=kind, top=0))

    def called(rows: logits.Rows, state: logits.State) -> list[str]:
        calls.clear()
        jax.block_until_ready(run(random_logits(2, 50), rows, state))
        jax.effects_barrier()
        return sorted(calls)

    assert called(*rows_of([GREEDY, GREEDY], vocab=50)) == []
    rows, state = rows_of([GREEDY, WARM], vocab=50)
    assert called(rows, state) == ["sample", "warp_logits"]
    # A row that does not sample does not count, such as padding or the chunk of a prompt.
    assert called(rows._replace(samples=jnp.array([True, False])), state) == []


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["plain", "full"])
@pytest.mark.parametrize("sampling", [GREEDY, WARM, Sampling(top_p=0.5)])
def test_rows_without_a_distribution_have_no_token(sampling: Sampling, kind: logits.Kind) -> None:
    z = np.array(random_logits(5, 5000))
    z[1, 4321], z[2, 4999], z[3] = np.nan, np.inf, -np.inf
    rows, state = rows_of([sampling] * 5, vocab=5000)
    drawn = compiled(kind)(jnp.asarray(z), rows, state)
    assert (np.asarray(drawn.tokens) >= 0).tolist() == [True, False, False, False, True]
    for numbers in drawn[1:4]:
        assert np.isnan(numbers).tolist() == [False, True, True, True, False]
    if kind == "full":
        assert drawn.scores.ranks.tolist()[1:4] == [0, 0, 0]
        assert drawn.scores.top_tokens[1:4].tolist() == [[-1] * 3] * 3
        assert np.isnan(drawn.scores.top_logprobs[1:4]).all()
        assert np.isfinite(drawn.scores.top_logprobs[::4]).all()


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_ban_hides_no_nan_and_may_leave_nothing(temperature: float) -> None:
    z = np.array(random_logits(3, 8))
    z[0, 7] = np.nan
    ban = {7: -np.inf}
    all_but_one = dict.fromkeys(range(7), -np.inf)
    samplings = [
        Sampling(temperature=temperature, logit_bias=bias)
        for bias in (ban, all_but_one, ban | all_but_one)
    ]
    rows, state = rows_of(samplings, vocab=8)
    state = state._replace(stops=jnp.zeros_like(state.stops).at[2].set(True))
    assert compiled("full")(jnp.asarray(z), rows, state).tokens.tolist() == [-1, 7, -1]
    banned = rows._replace(bans=jnp.array([True, False, False]))
    z[0, 7] = 0.0
    assert compiled("full")(jnp.asarray(z), banned, state).tokens.tolist() == [-1, 7, -1]


@pytest.mark.thorough
def test_rows_that_do_not_sample_do_nothing() -> None:
    z = random_logits(3, 40)
    rows, state = rows_of([WARM, GREEDY, WARM], vocab=40)
    padded = rows._replace(
        samples=jnp.array([True, False, False]), slots=jnp.array([2, -1, 99], jnp.int32)
    )
    full, part = (compiled("full")(z, r, state) for r in (rows, padded))
    assert bits(full, 0) == bits(part, 0)
    assert part.tokens[1:].tolist() == [-1, -1]
    counted = logits.counted(state, padded.slots, part.tokens)
    change = np.asarray(counted.counts - state.counts)
    assert np.argwhere(change).tolist() == [[2, int(part.tokens[0])]]
    assert change.sum() == 1


def test_slots_outside_the_state_count_nothing() -> None:
    _, state = rows_of([WARM] * 3, vocab=10)
    slot_ids, tokens = (
        jnp.array(x, jnp.int32) for x in ([-1, 3, 0, 1, -3, 2], [4, 4, -1, 4, 4, 9])
    )
    change = logits.counted(state, slot_ids, tokens).counts - state.counts
    assert np.argwhere(np.asarray(change)).tolist() == [[1, 4], [2, 9]]


@pytest.mark.thorough
def test_draws_depend_neither_on_the_default_generator_nor_on_64_bits() -> None:
    program = Path(__file__).parents[1] / "programs" / "draws.py"
    results = []
    for environment in ({}, {"JAX_DEFAULT_PRNG_IMPL": "rbg"}, {"JAX_ENABLE_X64": "1"}):
        done = warm_start.run(
            ["-W", "error", program], env=forced_devices.environment(1) | environment
        )
        assert done.returncode == 0, done.stderr[-3000:]
        results.append(json.loads(done.stdout))
    assert results[0] == results[1] == results[2]
    assert len(set(results[0]["tokens"])) > 10


@pytest.mark.thorough
def test_the_mass_is_right_near_0_and_far_below() -> None:
    flat = np.zeros(50_000, "f4")
    steep = np.zeros(50_000, "f4")
    steep[1:] = -27.0  # in sum 1e-7 of the likeliest
    top = np.zeros(50_000, "f4")
    top[7] = 1e-3  # the others are cut
    rows, _ = rows_of(
        [Sampling(top_k=1), Sampling(min_p=0.5), Sampling(top_k=1), WARM], vocab=50_000
    )
    z = jnp.asarray(np.stack([flat, steep, top, flat]))
    mass = np.asarray(compiled("plain")(z, rows, None).log_mass, "f8")
    # Sums of 50,000 terms, in float32.
    cut = 49_999 * np.exp(-27.0)
    np.testing.assert_allclose(mass[1], -np.log1p(cut), rtol=1e-4)
    np.testing.assert_allclose(mass[2], -np.log1p(49_999 * np.exp(-1e-3)), rtol=1e-5)
    assert mass[0] == mass[3] == 0  # equal logits are all kept


def test_scores_are_log_probabilities_and_ranks() -> None:
    z = np.array(random_logits(6, 20)).round()  # with equal ones
    z[3, :17], z[4, 3] = -np.inf, np.nan
    tokens = np.array([3, 19, -1, 18, 0, 5], "i4")
    scores = jax.jit(functools.partial(logits.score, top=5))(jnp.asarray(z), jnp.asarray(tokens))
    for i in (0, 1, 3, 5):
        logp = z[i] - z[i].max().astype("f8")
        logp -= np.log(np.exp(logp).sum())
        order = np.argsort(-logp, kind="stable")[:5]
        order = np.where(logp[order] > -np.inf, order, -1)
        assert scores.top_tokens[i].tolist() == order.tolist()
        # 20 terms in float32.
        np.testing.assert_allclose(scores.logprobs[i], logp[tokens[i]], rtol=2e-6, atol=2e-6)
        np.testing.assert_allclose(
            scores.top_logprobs[i], np.sort(logp)[::-1][:5], rtol=2e-6, atol=2e-6
        )
        assert scores.ranks[i] == 1 + (logp > logp[tokens[i]]).sum()
    assert np.isnan(scores.logprobs).tolist() == [False, False, True, False, True, False]
    assert scores.ranks[2] == scores.ranks[4] == 0
    assert (scores.top_tokens[2] >= 0).all()
    assert scores.top_tokens[4].tolist() == [-1] * 5
    assert np.isnan(scores.top_logprobs[4]).all()


def test_no_likeliest_tokens_are_no_columns() -> None:
    score = jax.jit(logits.score, static_argnames="top")
    scores = score(random_logits(2, 9), jnp.array([1, 2], jnp.int32), top=0)
    assert scores.top_tokens.shape == scores.top_logprobs.shape == (2, 0)


def test_a_full_step_needs_a_state() -> None:
    rows, _ = rows_of([WARM], vocab=9)
    with pytest.raises(ValueError, match=r"'full' needs a state, got state=None\. Pass a State\."):
        logits.draw(reference, random_logits(1, 9), rows, None, kind="full", top=0)

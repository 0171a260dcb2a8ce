# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rules of users: their draws, their programs, and rules that cannot run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from engines import VOCAB, decoder, engine, greedy, logprobs, prompts
from jax.core import ShapedArray

from dovetail_infer import Engine, Sampling
from dovetail_infer.step import rules
from dovetail_infer.step.logits import State
from dovetail_infer.step.placement import Placement

COMPANY = [
    Sampling(max_tokens=6, seed=i, temperature=0.8, presence_penalty=0.5 * (i % 2))
    for i in range(8)
]


@pytest.fixture(scope="module")
def running() -> Iterator[Engine]:
    """An engine of nine rows, which gives a request the same bits in any company."""
    with engine(max_rows=9, invariant=True) as shared:
        yield shared


def likeliest(z: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.argmax(z)


def gumbel(z: jax.Array, key: jax.Array) -> jax.Array:
    return jax.random.categorical(key, z)


def least(z: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.argmin(jnp.where(z > -jnp.inf, z, jnp.inf))


def raises(z: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.argmax(z) if z[0] > 0 else jnp.argmin(z)


def raises_under_vmap(z: jax.Array, key: jax.Array) -> jax.Array:
    return _unbatched.bind(z)


_unbatched: Any = jax.extend.core.Primitive("unbatched")
_unbatched.def_abstract_eval(lambda z: ShapedArray((), jnp.int32))


def beyond(z: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.int32(z.size)


def negative(z: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.int32(-z.size)


def cut(z: jax.Array, key: jax.Array) -> jax.Array:
    return jnp.argmin(z)


def of_nan(z: jax.Array, key: jax.Array) -> jax.Array:
    return (z[0] * jnp.nan > 0).astype(jnp.int32) - 1


REFUSED = {
    raises: (ValueError, "TracerBoolConversionError.*Use jax.numpy"),
    raises_under_vmap: (ValueError, "unbatched.*Use jax.numpy"),
    lambda z, key: z[0]: (TypeError, r"returns float32\[\]\. Return"),
    lambda z, key: z: (TypeError, r"returns float32\[61\]\. Return"),
    lambda z, key: z[0] > 0: (TypeError, r"returns bool\[\]\. Return"),
    lambda z, key: None: (TypeError, r"returns None\. Return"),
    lambda z, key: (1, 2): (TypeError, r"returns \(1, 2\)\. Return"),
}


def bits(completions: Any) -> list[bytes]:
    names = ("tokens", "logprobs", "sampled_logprobs", "log_mass")
    return [getattr(c, name).tobytes() for c in completions for name in names]


@pytest.fixture(scope="module")
def without(running: Engine) -> list[bytes]:
    """The company of a rule, without it."""
    return bits(running.generate(prompts(9)[:8], COMPANY))


@pytest.mark.parameter("rule", refuses=True)
@pytest.mark.parametrize("rule", REFUSED)
def test_a_rule_that_cannot_run_is_refused(rule: Any) -> None:
    error, message = REFUSED[rule]
    compiler = rules.Rules(*of_slots(2, 61))
    with pytest.raises(error, match=f"^rule must .*, got rule=<function .*{message}"):
        compiler.program(rule)
    assert compiler.compiles == 0


def of_slots(slots: int, vocab: int) -> Any:
    """Shapes of the state of slots, and their device."""
    place = Placement.of([])
    kinds = (jnp.float32, jnp.bool_, jnp.bool_, jnp.int32)
    shape: Any = jax.ShapeDtypeStruct  # stands for an array
    shapes = (shape((slots, vocab), kind, sharding=place.whole) for kind in kinds)
    return State(*shapes), place


def test_equal_rules_have_one_program() -> None:
    class Model:
        def rule(self, z: jax.Array, key: jax.Array) -> jax.Array:
            return jnp.argmax(z)

    compiler, model = rules.Rules(*of_slots(2, 5)), Model()
    assert compiler.program(model.rule) is compiler.program(model.rule)
    assert compiler.compiles == 1
    z, kept = jnp.array([[0.0, 3, 2, 1, 0]] * 8), jnp.arange(5) > 1
    warped = jnp.where(kept, z - 2, -jnp.inf)
    slots = np.array([1, *[2] * 7], np.int32)
    state = State(*(jnp.zeros((2, 5), x) for x in (jnp.float32, jnp.bool_, jnp.bool_, jnp.int32)))
    last, state, packed = compiler.program(model.rule)(
        jnp.array([7, 7], jnp.int32), state, z, warped, slots, slots, np.zeros((8, 2), np.uint32)
    )
    assert last.tolist() == [7, 2]
    assert np.argwhere(np.asarray(state.counts)).tolist() == [[1, 2]]
    token, *numbers, rank = np.asarray(packed)[0]
    assert (token, rank) == (2, 2)
    want = 2 - np.log(np.exp([0, 3, 2, 1, 0]).sum()), np.nan  # it tells no distribution
    # A sum of five terms in float32.
    np.testing.assert_allclose(np.array(numbers).view(np.float32), want, rtol=1e-6)


@pytest.mark.thorough("an engine whose steps all have the largest size")
@pytest.mark.parameter("rule", refuses=True)
@pytest.mark.parametrize("rule", [raises, raises_under_vmap])
def test_a_refused_rule_leaves_running_requests_alone(
    running: Engine, without: list[bytes], rule: Any
) -> None:
    streams = [running.stream(*x) for x in zip(prompts(9)[:8], COMPANY, strict=True)]
    for stream in streams:
        stream.__enter__()
    for call in (running.generate, lambda x, y: running.stream(x[0], y)):
        with pytest.raises(ValueError, match=r"^rule must compile under jax\.vmap and jax\.jit"):
            call([prompts(9)[8]], Sampling(rule=rule))
    for stream in streams:
        assert list(stream)
    assert bits([stream.completion for stream in streams]) == without
    stats = running.stats()
    assert stats.failed_steps == stats.waiting == stats.running == 0


@pytest.mark.thorough("an engine whose steps all have the largest size")
@pytest.mark.parameter("rule", refuses=True)
@pytest.mark.parametrize("rule", [beyond, negative, cut, of_nan])
def test_a_rule_with_another_id_ends_its_request_alone(
    running: Engine, without: list[bytes], rule: Any
) -> None:
    *others, last = running.generate(prompts(9), [*COMPANY, Sampling(rule=rule, top_k=3)])
    assert (last.finish_reason, len(last.tokens)) == ("error", 0)
    assert last.error is not None
    assert last.error.startswith("rule must return the id of a token that is not cut, got another")
    assert bits(others) == without


@pytest.mark.thorough("an engine whose steps all have the largest size")
@pytest.mark.parameter("rule")
def test_rules_draw_beside_others(running: Engine, without: list[bytes]) -> None:
    """Their draws: the least likely of three, and those of a seed, as without a rule."""
    seeded = Sampling(max_tokens=6, seed=4, temperature=0.7, top_k=9, logprobs=2)
    drawn = running.generate(prompts(9)[:1], seeded)[0]
    third = dataclasses.replace(seeded, rule=least, top_k=3, logprobs=3, frequency_penalty=1.0)
    gumbels = dataclasses.replace(seeded, rule=gumbel)
    found = running.generate(
        [*prompts(9)[:8], prompts(9)[0], prompts(9)[0]], [*COMPANY, gumbels, third]
    )
    assert bits(found[:8]) == without
    np.testing.assert_array_equal(found[8].tokens, drawn.tokens)
    assert np.isnan(found[8].sampled_logprobs).all()  # what a rule draws from is not known
    for name in ("logprobs", "log_mass"):
        # The same formulas in two programs: a few units in the last place.
        np.testing.assert_allclose(getattr(found[8], name), getattr(drawn, name), atol=1e-6)
    # Log-probabilities and ranks of the model, and counts for the penalty, by whole passes.
    ids, tokens = prompts(9)[0], found[9].tokens.tolist()
    rows = logprobs(decoder(), ids + tokens)[len(ids) - 1 : -1]
    np.testing.assert_allclose(found[9].logprobs, rows[np.arange(6), tokens], atol=1e-4)
    for i, (row, token) in enumerate(zip(rows, tokens, strict=True)):
        assert found[9].top is not None
        assert found[9].top.ranks[i] == 1 + (row > row[token]).sum()
        penalized = row - np.bincount(tokens[:i], minlength=VOCAB)
        assert token == np.argsort(-penalized)[2]


@pytest.mark.thorough("it compiles the steps of an engine twice")
@pytest.mark.parameter("rule")
def test_a_rule_compiles_once_and_others_launch_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine() as running:
        executor, option = running._executor, Sampling(max_tokens=3, temperature=0)
        (plain,) = running.generate([[1, 2]], option)
        programs, launched = len(executor._compiled), []
        draw = rules.draw
        monkeypatch.setattr(rules, "draw", lambda *x: launched.append(x) or draw(*x))
        ruled = dataclasses.replace(option, rule=likeliest)
        for _ in range(2):
            assert running.generate([[1, 2]], ruled)[0].tokens.tolist() == plain.tokens.tolist()
        assert plain.tokens.tolist() == greedy(decoder(), [1, 2], 3)
        assert executor.rules.compiles == 1
        assert len(launched) == 6
        seen = len(executor._compiled)
        assert seen > programs
        running.generate([[1, 2]], dataclasses.replace(option, rule=least))
        assert (executor.rules.compiles, len(executor._compiled)) == (2, seen)  # no step again
        count = len(launched)
        running.generate([[1, 2]], option)
        assert len(launched) == count


@pytest.mark.thorough("it compiles forty programs")
def test_rules_are_forgotten() -> None:
    with engine() as running:
        option = Sampling(max_tokens=2, temperature=0)
        for i in range(40):
            rule = dataclasses.replace(option, rule=lambda z, key, i=i: jnp.argmax(z) + 0 * i)
            (found,) = running.generate([[1, 2]], rule)
            assert found.finish_reason == "length"
        remembered = running._executor.rules._remembered.cache_info()
        assert (running._executor.rules.compiles, remembered.currsize) == (40, rules.REMEMBERED)
        assert len(running._steps._rules) <= 4  # of slots
        assert sum(program.ruled for program in running._executor.programs()) <= 2

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

from dovetail_optim import Phase, Schedule, branch, by_tokens, wsd

pytestmark = pytest.mark.capability("schedules as values")

FORMS = {
    "linear": lambda t: 1 - t,
    "cosine": lambda t: (1 + np.cos(np.pi * t)) / 2,
    "1-sqrt": lambda t: 1 - np.sqrt(t),
    "square": lambda t: 1 - t**2,
}


def values(schedule, steps):
    return np.asarray(jax.jit(jax.vmap(schedule))(jnp.arange(steps)))


@pytest.mark.parametrize("shape", FORMS)
def test_warmup_stable_decay_by_its_formula(shape):
    schedule = wsd(0.3, warmup=5, total=40, cooldown=12, floor=0.01, shape=shape)
    t = np.arange(45)
    left = FORMS[shape](np.clip((t - 28) / 12, 0, 1))
    expected = np.where(t < 5, 0.3 * t / 5, np.where(t < 28, 0.3, 0.01 + 0.29 * left))
    np.testing.assert_allclose(values(schedule, 45), expected, rtol=1e-5, atol=1e-7)
    assert schedule.steps == 40


def test_an_exponential_piece():
    phase = Phase(steps=10, begin=1.0, end=1e-3, shape="exponential")
    expected = 1e-3 ** (np.minimum(np.arange(12), 10) / 10)
    np.testing.assert_allclose(values(Schedule(phases=(phase,)), 12), expected, rtol=1e-5)


@pytest.mark.thorough
def test_optax_takes_it_and_agrees_where_it_has_the_same():
    ours = wsd(0.5, warmup=4, total=20, cooldown=16, shape="cosine")
    theirs = optax.warmup_cosine_decay_schedule(0.0, 0.5, 4, 20)
    np.testing.assert_allclose(values(ours, 25), values(theirs, 25), rtol=1e-5, atol=1e-7)
    tx = optax.sgd(ours)
    state = tx.init(jnp.ones(1))
    for i in range(6):
        updates, state = tx.update(jnp.ones(1), state)
        np.testing.assert_allclose(-updates[0], theirs(i), rtol=1e-5, atol=1e-7)


@pytest.mark.thorough
def test_a_branch_leaves_what_was_and_decays_from_there():
    long = wsd(0.3, warmup=5, total=10**6, cooldown=0)
    short = branch(long, at=20, cooldown=10)
    np.testing.assert_array_equal(values(short, 20), values(long, 20))
    expected = 0.3 * (1 - np.sqrt(np.arange(11) / 10))
    np.testing.assert_allclose(values(short, 31)[20:], expected, rtol=1e-5, atol=1e-7)
    assert short == wsd(0.3, warmup=5, total=30, cooldown=10)
    early = branch(long, at=2, cooldown=4, shape="linear")
    np.testing.assert_allclose(
        values(early, 7), [0, 0.06, 0.12, 0.09, 0.06, 0.03, 0], rtol=1e-5, atol=1e-7
    )


def test_a_branch_after_the_end_holds_the_last_value_until_then():
    short = branch(wsd(0.2, warmup=0, total=5, cooldown=5, floor=0.1), at=8, cooldown=2, floor=0.0)
    np.testing.assert_allclose(values(short, 11)[[5, 7, 8, 10]], [0.1, 0.1, 0.1, 0], atol=1e-7)


def test_a_schedule_of_tokens():
    tokens = wsd(1.0, warmup=1000, total=10**12, cooldown=10**12 // 2, shape="linear")
    schedule = by_tokens(tokens, per_step=2**22)
    steps = np.array([0, 1, 10**5, 2 * 10**5, 238418])
    expected = [0, 1, 1, 2 - 2 * (2e5 * 2**22) / 1e12, 2 - 2 * (238418 * 2**22) / 1e12]
    found = [float(schedule(jnp.int32(s))) for s in steps]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_steps_beyond_what_float32_counts():
    schedule = Schedule(
        phases=(Phase(steps=2**24, begin=1.0, end=1.0), Phase(steps=4, begin=1.0, end=0.0))
    )
    found = [float(schedule(2**24 + i)) for i in range(5)]
    np.testing.assert_allclose(found, [1, 0.75, 0.5, 0.25, 0], atol=1e-7)


def test_it_is_written_down_and_read_back():
    schedule = wsd(0.3, warmup=5, total=40, cooldown=12, floor=0.01, shape="cosine")
    again = Schedule.from_json(json.loads(json.dumps(schedule.to_json())))
    assert again == schedule
    assert hash(again) == hash(schedule)


WRONG = [
    (lambda: wsd(1.0, warmup=5, total=10, cooldown=6), r"fit into total, got warmup=5, cooldown=6, "
     r"total=10. Use total=11"),
    (lambda: wsd(1.0, warmup=-1, total=10, cooldown=6), r"at least 0 .*got warmup=-1"),
    (lambda: wsd(1.0, warmup=1, total=10, cooldown=2, shape="sqrt"), r"shape must be one of .*got "
     r"shape='sqrt'. Use"),
    (lambda: Phase(steps=0, begin=0.0, end=1.0), r"steps >= 1, got steps=0. Leave it out"),
    (lambda: Phase(steps=1, begin=np.nan, end=1.0), r"finite ends, got begin=nan, end=1.0. Use"),
    (lambda: Phase(steps=1, begin=1.0, end=0.0, shape="exponential"), r"ends above 0, got .*=0.0"),
    (lambda: Schedule(phases=()), r"must have a phase, got none. Use"),
    (lambda: branch(wsd(1.0, warmup=0, total=9, cooldown=9), at=3, cooldown=2), r"straight, got "
     r"at=3 steps into a phase of shape '1-sqrt'. Use"),
    (lambda: branch(wsd(1.0, warmup=0, total=9, cooldown=0), at=-1, cooldown=2), r"got at=-1. Use"),
    (lambda: by_tokens(wsd(1.0, warmup=0, total=9, cooldown=0), per_step=0), r"got per_step=0."),
]  # fmt: skip


@pytest.mark.parametrize("call, message", WRONG)
def test_what_does_not_fit_is_refused(call, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message):
        call()


def test_a_branch_may_leave_where_a_curve_has_ended():
    rise = Phase(steps=10, begin=0.0, end=1.0, shape="cosine")
    early = branch(Schedule(phases=(rise, Phase(steps=5, begin=1.0, end=1.0))), at=10, cooldown=4)
    assert early.phases == (rise, Phase(steps=4, begin=1.0, end=0.0, shape="1-sqrt"))


def test_pieces_that_are_not_meant_give_no_nan():
    rate = wsd(1.0, warmup=2, total=20, cooldown=10)
    with jax.debug_nans(True):
        assert float(rate(1)) == 0.5

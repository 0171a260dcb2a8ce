# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What is skipped, against the rule in float64 NumPy; and that skipping changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail_optim import Guard, guard, halted
from dovetail_optim.guarding.guard import REASONS, norm
from dovetail_optim.testing import check_transformation

RNG = np.random.default_rng(0)
PARAMS = {
    "w": jnp.asarray(RNG.normal(size=(3, 5)), jnp.float32),
    "b": jnp.asarray([-0.0, 0.0, 1.5, -2.0], jnp.float32),
}
TX = guard(optax.adamw(1e-2), window=16, patience=3)


@jax.jit
def step(params, state, grads, value):
    updates, state = TX.update(grads, state, params, value=value)
    return optax.apply_updates(params, updates), state


def gradient(size=1.0, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda p: jnp.asarray(size * rng.normal(size=p.shape), jnp.float32), PARAMS)


def bits(tree):
    return [np.array(x).tobytes() for x in jax.tree.leaves(tree)]


def train(sizes, losses=None):
    """Parameters, state, and the reason of each step."""
    params, state = PARAMS, TX.init(PARAMS)
    reasons = []
    losses = [1.0] * len(sizes) if losses is None else losses
    for i, (size, loss) in enumerate(zip(sizes, losses, strict=True)):
        params, state = step(params, state, gradient(size, seed=i), jnp.float32(loss))
        reasons.append(int(state.history.reason))
    return params, state, reasons


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_contract(dtype):
    check_transformation(TX, jax.tree.map(lambda p: p.astype(dtype), PARAMS), value=1.0)


@pytest.mark.thorough
@pytest.mark.capability("guarded steps: non-finite and spiking ones change no bit")
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["w", "b", "loss", "both"])
@pytest.mark.parametrize("at", [0, 1, 20])
def test_what_is_not_finite_changes_no_bit_at_any_step(wrong, where, at):
    params, state, _ = train([1.0] * at)
    grads, loss = gradient(seed=99), jnp.float32(2.0)
    if where in ("loss", "both"):
        loss = jnp.float32(wrong)
    if where != "loss":
        leaf = "w" if where == "both" else where
        grads[leaf] = grads[leaf].at[1].set(wrong)
    after, skipped = step(params, state, grads, loss)
    assert bits(after) == bits(params)
    assert bits(skipped.inner) == bits(state.inner)
    assert bits(skipped.history.log_norms) == bits(state.history.log_norms)
    assert bits(skipped.history.losses) == bits(state.history.losses)
    assert int(skipped.history.skipped) == 1
    assert REASONS[int(skipped.history.reason)].endswith("is not finite")
    assert ("loss" in REASONS[int(skipped.history.reason)]) == (where == "loss")
    good = gradient(seed=7), jnp.float32(2.0)
    once, state_once = step(after, skipped, *good)
    never, state_never = step(params, state, *good)
    assert bits(once) == bits(never)
    assert bits(state_once.inner) == bits(state_never.inner)


def limit(values, *, least, sigma=6.0, window=16):
    """The least spike after these accepted values, in float64."""
    if len(values) < 16:
        return np.inf
    recent = np.array(values[-window:])
    median = np.median(recent)
    mad = max(np.median(abs(recent - median)), least(median))
    return median + sigma * 1.4826 * mad


def oracle(sizes, accepted_losses=None, *, patience=3):
    """The rule by its words, in float64: the reason of each step."""
    logs, losses, spikes, reasons = [], [], 0, []
    given = [1.0] * len(sizes) if accepted_losses is None else accepted_losses
    for i, (size, loss) in enumerate(zip(sizes, given, strict=True)):
        leaves = [np.asarray(x, np.float64) for x in jax.tree.leaves(gradient(size, seed=i))]
        log = np.log(np.sqrt(sum((x**2).sum() for x in leaves)))
        norm_spikes = log > limit(logs, least=lambda _: 0.1)
        loss_spikes = loss > limit(losses, least=lambda median: 0.02 * abs(median))
        spikes = spikes + 1 if norm_spikes or loss_spikes else 0
        if 0 < spikes < patience:
            reasons.append(3 if norm_spikes else 4)
            continue
        logs, losses = ([], []) if spikes else (logs, losses)
        logs, losses, spikes = [*logs, log], [*losses, loss], 0
        reasons.append(0)
    return reasons


@pytest.mark.capability("guarded steps: non-finite and spiking ones change no bit")
def test_spikes_are_those_of_the_rule():
    rng = np.random.default_rng(5)
    sizes = np.exp(rng.normal(size=120) * 0.2)
    sizes[[3, 20, 40, 41, 70]] *= 40  # the first comes before there are sixteen
    _, state, reasons = train(sizes)
    assert reasons == oracle(sizes)
    assert np.flatnonzero(reasons).tolist() == [20, 40, 41, 70]
    assert int(state.history.skipped) == 4


@pytest.mark.parametrize("level", [3.0, 0.0, -3.0])
def test_losses_spike_by_the_same_rule_of_any_sign(level):
    rng = np.random.default_rng(6)
    losses = level + 0.2 * rng.normal(size=120)
    losses[[3, 20, 40, 41, 70, 90]] += [9, 9, 4, 4, 2.5, -9]  # a fall is no spike
    sizes = np.exp(rng.normal(size=120) * 0.2)
    sizes[70] *= 40  # both spike: the reason is the norm
    _, state, reasons = train(sizes, losses)
    assert reasons == oracle(sizes, losses)
    assert {i: reason for i, reason in enumerate(reasons) if reason} == {20: 4, 40: 4, 41: 4, 70: 3}
    assert REASONS[4] == "the loss spikes"
    assert int(state.history.skipped) == 4


def test_without_noise_a_loss_may_rise_by_a_sixth():
    losses = [2.0] * 20 + [2.35, 2.0, 2.36, 2.0]  # the limit is 2 (1 + 6 * 1.4826 * 0.02) = 2.3558
    _, _, reasons = train([1.0] * len(losses), losses)
    assert np.flatnonzero(reasons).tolist() == [22]


def test_a_loss_of_a_step_without_gradient_says_nothing():
    # As in reinforcement learning before the first reward.
    _, state, reasons = train([0.0] * 20 + [1.0] * 3, [0.0] * 20 + [0.5] * 3)
    assert not any(reasons)
    assert int(state.history.accepted) == 3


@pytest.mark.thorough
def test_a_history_holds_no_nan():
    rule = Guard()
    with jax.debug_nans(True):
        history = rule.begin()
        for loss in (None, jnp.float32(1.0)):
            taken, history = jax.jit(rule.judge)(history, grad_norm=jnp.float32(1.0), loss=loss)
            assert taken
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(history))


def test_a_lasting_rise_is_accepted_after_patience_and_counts_from_there():
    sizes = [1.0] * 20 + [100.0] * 25 + [1e4] + [100.0]
    _, _, reasons = train(sizes)
    assert reasons == oracle(sizes)
    assert reasons[20:23] == [3, 3, 0]
    assert not any(reasons[23:45])
    assert reasons[45:] == [3, 0]


def test_a_new_beginning_forgets_the_norms_before():
    # Half of the window would be of before, and the median absolute deviation all between.
    rule = Guard(window=32, patience=2)
    judge, history, taken = jax.jit(rule.judge), rule.begin(), []
    for size in [1.0] * 32 + [100.0] * (2 + 15) + [1e4]:
        ok, history = judge(history, grad_norm=jnp.float32(size))
        taken.append(bool(ok))
    assert np.flatnonzero(~np.array(taken)).tolist() == [32, 32 + 2 + 15]


def test_a_spike_between_others_that_are_not_finite_still_counts():
    params, state, _ = train([1.0] * 20)
    reasons = []
    for size in (100.0, np.nan, 100.0, 100.0):
        params, state = step(params, state, gradient(size), jnp.float32(1.0))
        reasons.append(int(state.history.reason))
        failures = int(state.history.failures)
        assert failures == (1 if np.isnan(size) else 0)  # which a spike ends
    assert reasons == [3, 1, 3, 0]


def test_a_gradient_of_zero_is_taken_and_says_nothing():
    _, state, _ = train([0.0] * 3 + [1.0] * 16)
    assert int(state.history.accepted) == 16
    assert int(state.history.skipped) == 0
    assert np.isfinite(state.history.log_norms).all()


def test_a_run_that_came_to_nothing_says_why():
    params, state, _ = train([1.0] * 2)
    assert halted(state, patience=3) is None
    for _ in range(3):
        assert halted(state, patience=3) is None
        params, state = step(params, state, gradient(np.nan), jnp.float32(1.0))
    message = halted(state, patience=3)
    assert (
        message == "the gradient is not finite, for 3 steps in a row; of all steps 3 were skipped"
    )
    _, state = step(params, state, gradient(), jnp.float32(1.0))
    assert halted(state, patience=3) is None
    with pytest.raises(ValueError, match=r"one guard, got 0 in a dict.*Use guard"):
        halted({})


def test_the_loss_reaches_what_takes_it_and_may_be_left_out():
    def update(updates, state, params=None, *, value, **_):
        return jax.tree.map(lambda g: g * value, updates), state

    takes = optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
    tx = guard(takes)
    updates, _ = tx.update(PARAMS, tx.init(PARAMS), PARAMS, value=2.0)
    np.testing.assert_array_equal(updates["w"], 2 * PARAMS["w"])
    plain = guard(optax.sgd(1.0))
    updates, _ = plain.update(PARAMS, plain.init(PARAMS))
    np.testing.assert_array_equal(updates["w"], -PARAMS["w"])


def test_steps_outside_jit_compile_nothing_anew():
    plain = guard(optax.sgd(0.1), window=16)
    params, state = PARAMS, plain.init(PARAMS)
    for i in range(2):
        _, state = plain.update(gradient(seed=i), state, params)
    with jax.no_tracing():
        _, state = plain.update(gradient(seed=2), state, params)
    assert not int(state.history.skipped)


def test_norms_of_narrow_numbers_are_formed_in_float32():
    tree = {"a": jnp.full(300, 200.0, jnp.float16)}  # its square is beyond float16
    np.testing.assert_allclose(norm(tree), 200 * np.sqrt(300), rtol=1e-6)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sigma": 0.0}, r"sigma must be positive, got sigma=0.0. Use"),
        ({"sigma": np.inf}, r"sigma must be positive, got sigma=inf. Use"),
        ({"window": 15}, r"window must be at least 16 .*got window=15. Use"),
        ({"patience": 0}, r"patience must be at least 1 step, got patience=0. Use"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        Guard(**options)

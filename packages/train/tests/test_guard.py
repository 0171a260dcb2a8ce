# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import logging
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import BadStep, Guard, Trainer
from dovetail_train.guard import fresh, judge

WINDOW = 8


def _expected(losses, *, sigma, window):
    """Which steps are good, with the mean and variance of the accepted ones, in float64."""
    mean = variance = 0.0
    seen, good = 0, []
    for loss in losses:
        bound = mean + sigma * math.sqrt(variance) if seen >= window else math.inf
        good.append(math.isfinite(loss) and loss <= bound)
        if not good[-1]:
            continue
        seen += 1
        weight = 1 / min(seen, window)
        ahead = loss - mean
        mean += weight * ahead
        variance = (1 - weight) * (variance + weight * ahead**2)
    return good, mean, variance


def _judged(guard, losses, norms=None):
    seen, good = fresh(), []
    step = jax.jit(lambda seen, loss, norm: judge(guard, seen, loss=loss, grad_norm=norm))
    for loss, norm in zip(losses, norms or [1.0] * len(losses), strict=True):
        ok, seen = step(seen, jnp.float32(loss), jnp.float32(norm))
        good.append(bool(ok))
    return good, seen


def test_spikes_are_found_and_do_not_count():
    rng = np.random.default_rng(0)
    losses = (3 + 0.1 * rng.normal(size=60)).astype("f4")
    losses[[20, 21, 40]] = [9.0, np.nan, 4.5]
    want, mean, variance = _expected(losses.astype(np.float64), sigma=5.0, window=WINDOW)
    assert not any(want[i] for i in (20, 21, 40))
    good, seen = _judged(Guard(sigma=5.0, window=WINDOW), losses)
    assert good == want
    # 60 updates of float32, each rounding once or twice.
    assert float(seen.mean) == pytest.approx(mean, rel=1e-5)
    assert float(seen.variance) == pytest.approx(variance, rel=1e-3)
    assert int(seen.accepted) + int(seen.skipped) == 60
    assert int(seen.skipped) == want.count(False)


def test_the_first_losses_are_their_plain_mean_and_variance():
    losses = np.random.default_rng(1).normal(size=WINDOW).astype("f4")
    _, seen = _judged(Guard(window=WINDOW), losses)
    assert float(seen.mean) == pytest.approx(losses.mean(dtype=np.float64), rel=1e-5)
    assert float(seen.variance) == pytest.approx(losses.var(dtype=np.float64), rel=1e-5)


def test_nothing_is_a_spike_before_the_window_is_full():
    losses = [1.0, 1.1] * (WINDOW // 2 - 1) + [50.0]
    assert all(_judged(Guard(window=WINDOW), losses)[0])


def test_losses_that_are_all_alike_do_not_stop_a_run():
    one = np.float32(2.5)
    losses = [one] * WINDOW + [np.nextafter(one, np.float32(3)), one, np.float32(2.6)]
    assert _judged(Guard(window=WINDOW), losses)[0] == [True] * (WINDOW + 2) + [False]


def test_a_gradient_that_is_not_finite_is_bad_whatever_the_loss():
    guard = Guard(sigma=None, window=WINDOW)
    good, seen = _judged(guard, [1.0, 1.0, 1e30, -math.inf], [1.0, math.inf, 1.0, 1.0])
    assert good == [True, False, True, False]
    assert int(seen.in_a_row) == 1


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sigma": 0.0}, r"sigma must be positive, got sigma=0.0; write sigma=6.0"),
        ({"sigma": math.nan}, r"sigma must be positive, got sigma=nan"),
        ({"window": 1}, r"at least 2.*got window=1, max_skips=10; write for example"),
        ({"max_skips": -1}, r"at least 0, got window=128, max_skips=-1"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Guard(**options)


# In a run.


def _loss(model, batch, *, key):
    return (model(batch["x"]) ** 2).sum(), jnp.float32(batch["x"].shape[0])


def _batches(count, *, bad=()):
    rows = [np.random.default_rng(i).normal(size=(4, 3)).astype("f4") for i in range(count)]
    for i in bad:
        rows[i][1, 2] = np.nan
    return [{"x": x} for x in rows]


class _Lines:
    def __init__(self):
        self.of = {}

    def write(self, step, scalars):
        self.of.setdefault(step, {}).update(scalars)


def _fit(batches, *, guard=None, rate=1e-2, sinks=()):
    trainer = Trainer(optax.sgd(rate), _loss, guard=guard or Guard())
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    return trainer.fit(model, batches, steps=len(batches), sinks=sinks)


def test_a_skipped_step_is_reported_and_explained(caplog):
    lines = _Lines()
    with caplog.at_level(logging.WARNING, "dovetail_train"):
        result = _fit(_batches(6, bad=[2]), sinks=[lines])
    assert [lines.of[i]["skipped"] for i in range(6)] == [0, 0, 1, 0, 0, 0]
    assert lines.of[2]["update_norm"] == 0
    (record,) = caplog.records
    assert "skipped an update: loss=nan (limit inf)" in record.getMessage()
    assert "at step 2; largest: bias nan, kernel nan" in record.getMessage()
    assert result.step == 6
    assert int(result.state.guard.skipped) == 1
    assert result.seconds["skipped"] > 0


def test_a_spike_is_skipped_with_the_limit_that_it_passed(caplog):
    batches = _batches(14)
    batches[12] = {"x": batches[12]["x"] * 100}
    lines = _Lines()
    with caplog.at_level(logging.WARNING, "dovetail_train"):
        _fit(batches, guard=Guard(window=8), rate=1e-4, sinks=[lines])
    assert [i for i in lines.of if lines.of[i].get("skipped")] == [12]
    assert lines.of[12]["loss"] > lines.of[12]["loss_limit"] > lines.of[11]["loss"]
    assert "at step 12" in caplog.text


def test_too_many_in_a_row_end_the_run_with_the_batch():
    batches = _batches(9, bad=[2, 4, 5, 6])
    with pytest.raises(BadStep, match=r"at most max_skips=2.*got 3.*at step 6.*look at the") as e:
        _fit(batches, guard=Guard(max_skips=2))
    assert e.value.step == 6
    np.testing.assert_array_equal(e.value.batch["x"], batches[6]["x"])
    assert math.isnan(e.value.grad_norms["kernel"])
    assert math.isnan(e.value.scalars["loss"])
    assert _fit(batches, guard=Guard(max_skips=3)).step == 9


def test_the_first_step_must_be_finite():
    with pytest.raises(BadStep, match=r"must be finite.*at step 0, first in batch\.x"):
        _fit(_batches(3, bad=[0]))

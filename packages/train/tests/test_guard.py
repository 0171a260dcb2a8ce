# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import logging
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import BadStep, StepGuard, Trainer
from dovetail_train.step.guard import judge, no_skips


@dataclass(frozen=True)
class Factor:
    """A guard that refuses a loss above `factor` times the last accepted one."""

    factor: float = 10.0

    def begin(self):
        return {"loss": jnp.full((), 1e30, jnp.float32), "judged": jnp.zeros((), jnp.int32)}

    def judge(self, history, *, grad_norm, loss):
        taken = loss <= self.factor * history["loss"]
        last = jnp.where(taken, loss, history["loss"])
        return taken, {"loss": last, "judged": history["judged"] + 1}


def _judged(guard, losses, norms=None):
    history, skips, verdicts = guard and guard.begin(), no_skips(), []
    step = jax.jit(lambda h, s, loss, norm: judge(guard, h, s, loss=loss, grad_norm=norm))
    for loss, norm in zip(losses, norms or [1.0] * len(losses), strict=True):
        taken, history, skips = step(history, skips, jnp.float32(loss), jnp.float32(norm))
        verdicts.append(bool(taken))
    return verdicts, history, skips


def test_without_a_guard_only_what_is_not_finite_is_refused():
    losses = [1.0, 1e30, math.nan, -5.0, 1.0, math.inf, 2.0]
    norms = [1.0, 1e30, 1.0, 1.0, math.nan, 1.0, math.inf]
    verdicts, history, skips = _judged(None, losses, norms)
    assert verdicts == [True, True, False, True, False, False, False]
    assert history is None
    assert (int(skips.total), int(skips.in_a_row)) == (4, 3)


def test_a_guard_judges_finite_steps_and_its_history_knows_no_others():
    verdicts, history, skips = _judged(Factor(), [1.0, math.nan, 50.0, 2.0, 15.0, math.inf])
    assert verdicts == [True, False, False, True, True, False]
    assert (float(history["loss"]), int(history["judged"])) == (15.0, 4)
    assert (int(skips.total), int(skips.in_a_row)) == (3, 1)


def test_the_protocol_is_met_by_its_two_methods():
    assert isinstance(Factor(), StepGuard)


# Objects that are no guard.


class _Begins:
    def begin(self):
        return jnp.zeros(())


class _ReturnsARow(_Begins):
    def judge(self, history, *, grad_norm, loss):
        return jnp.ones(3, bool), history


class _ForgetsADtype(_Begins):
    def judge(self, history, *, grad_norm, loss):
        return loss < 1, history.astype(jnp.int32)


@pytest.mark.parametrize(
    "guard, error, message",
    [
        (_Begins(), TypeError, r"must be an object with begin\(\) and judge.*got _Begins; pass"),
        (
            Factor,
            TypeError,
            r"must be an object.*got the class Factor; pass .*dovetail_optim.Guard",
        ),
        (6.0, TypeError, r"got float; pass .* or guard=None to refuse only steps that are not fin"),
        (_ReturnsARow(), ValueError, r"must return bool\[\] first, got bool\[3\]; return \(taken,"),
        (
            _ForgetsADtype(),
            ValueError,
            r"that begin made, got int32\[\] after float32\[\]; mend _F",
        ),
    ],
)
def test_what_is_no_guard_is_refused(guard, error, message, unchecked):
    with pytest.raises(error, match=message):
        Trainer(optax.sgd(0.1), _loss, guard=guard)


def test_fewer_skips_than_none_are_refused():
    message = r"max_skips must be at least 0, got max_skips=-1; write max_skips=10, or max_skips=0"
    with pytest.raises(ValueError, match=message):
        Trainer(optax.sgd(0.1), _loss, max_skips=-1)


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


def _fit(batches, *, rate=1e-2, sinks=(), **options):
    trainer = Trainer(optax.sgd(rate), _loss, **options)
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    return trainer.fit(model, batches, steps=len(batches), sinks=sinks)


def test_a_skipped_step_is_reported_and_explained(caplog):
    lines = _Lines()
    with caplog.at_level(logging.WARNING, "dovetail_train"):
        result = _fit(_batches(6, bad=[2]), sinks=[lines])
    assert [lines.of[i]["skipped"] for i in range(6)] == [0, 0, 1, 0, 0, 0]
    assert lines.of[2]["update_norm"] == 0
    (record,) = caplog.records
    assert "skipped an update: loss=nan, grad_norm=nan at step 2, not finite" in record.getMessage()
    assert "largest gradients: bias nan, kernel nan" in record.getMessage()
    assert result.step == 6
    assert int(result.state.skips.total) == 1
    assert result.seconds["skipped"] > 0


@pytest.mark.thorough
def test_a_spike_is_skipped_and_the_guard_is_named(caplog):
    batches = _batches(8)
    batches[5] = {"x": batches[5]["x"] * 100}
    lines = _Lines()
    with caplog.at_level(logging.WARNING, "dovetail_train"):
        result = _fit(batches, guard=Factor(20.0), rate=1e-4, sinks=[lines])
    assert [i for i in lines.of if lines.of[i].get("skipped")] == [5]
    assert "at step 5, refused by Factor(factor=20.0); largest gradients: " in caplog.text
    assert int(result.state.guard["judged"]) == 8


def test_too_many_in_a_row_end_the_run_with_the_batch():
    batches = _batches(17, bad=[2, 4, 5, 6])
    message = r"at most max_skips=2.*got 3.*at step 6, not finite.*look at the.*larger max_skips="
    with pytest.raises(BadStep, match=message) as e:
        _fit(batches, max_skips=2)
    assert e.value.step == 6
    np.testing.assert_array_equal(e.value.batch["x"], batches[6]["x"])
    assert math.isnan(e.value.grad_norms["kernel"])
    assert math.isnan(e.value.scalars["loss"])
    assert _fit(batches, max_skips=3).step == 17


def test_with_a_guard_and_no_skips_the_first_spike_ends_the_run():
    batches = _batches(4)
    batches[2] = {"x": batches[2]["x"] * 100}
    message = r"at most max_skips=0.*got 1, .*at step 2, refused by Factor.*pass another guard="
    with pytest.raises(BadStep, match=message):
        _fit(batches, guard=Factor(20.0), max_skips=0, rate=1e-4)


@pytest.mark.thorough
def test_the_first_step_must_be_finite():
    with pytest.raises(BadStep, match=r"must be finite.*at step 0, first in batch\.x"):
        _fit(_batches(3, bad=[0]))
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    model.bias[...] = jnp.array([0.0, jnp.inf])
    with pytest.raises(BadStep, match=r"at step 0, first in params\.bias \(nothing was saved\)"):
        Trainer(optax.sgd(0.1), _loss).fit(model, _batches(3), steps=3)

    def loss(model, batch, *, key):
        return jnp.sqrt(model.kernel[...] * 0).sum() + model(batch["x"]).sum(), jnp.float32(1)

    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    with pytest.raises(BadStep, match=r"grad_norm=nan at step 0, first in the gradient of kern"):
        Trainer(optax.sgd(0.1), loss).fit(model, _batches(3), steps=3)


# Sizes of a report: 10 of 30 steps were skipped, and the run ended as if it were well.
TEN_OF_THIRTY = tuple(range(2, 30, 3))


def test_a_share_of_skipped_steps_ends_the_run():
    batches = _batches(30, bad=TEN_OF_THIRTY)
    message = (
        r"at most a quarter of the last 30 steps may be skipped, got 10, the last with loss=nan, "
        r".*at step 29, not finite.*look at the batches of steps 2, 5, 8, .*, 29, lower the.*guard="
    )
    with pytest.raises(BadStep, match=message) as e:
        _fit(batches)
    assert e.value.skipped == TEN_OF_THIRTY
    np.testing.assert_array_equal(e.value.batch["x"], batches[29]["x"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    "steps, bad, options, ends",
    [
        (60, range(2, 22, 2), {}, 20),  # 10 of 21
        (60, range(20, 30), {}, None),  # in a row, then a quarter of 40 at most
        (60, [*range(20, 30), 45], {}, 45),  # the eleventh
        (60, [*range(5, 15), 20], {}, 20),  # 11 of 21
        (120, range(4, 120, 4), {}, None),  # a quarter for ever
        (120, range(3, 118, 3), {}, 30),  # a third
        (60, range(2, 60, 5), {"max_skips": 1}, None),
        (60, range(2, 60, 3), {"max_skips": 2}, 29),
        (60, range(2, 58, 3), {"max_skips": 20}, None),
    ],
)
def test_the_share_is_of_recent_steps(steps, bad, options, ends):
    if ends is None:
        assert _fit(_batches(steps, bad=bad), **options).step == steps
    else:
        with pytest.raises(BadStep, match="at most a quarter of the last") as e:
            _fit(_batches(steps, bad=bad), **options)
        assert e.value.step == ends


class _Held:
    """Batches and a store in one: the newest step."""

    def __init__(self, bad):
        self.i, self.bad, self.newest = 0, bad, None

    def __iter__(self):
        return self

    def __next__(self):
        self.i += 1
        return _batches(self.i, bad=[self.i - 1] if self.i - 1 in self.bad else [])[-1]

    def get_state(self):
        return {"i": self.i}

    def set_state(self, state):
        self.i = state["i"]

    def save(self, step, **items):
        texts = {n: x.get_state() for n, x in items.items() if hasattr(x, "get_state")}
        arrays = {n: jax.device_get(x) for n, x in items.items() if n not in texts}
        self.newest = step, json.loads(json.dumps(texts)) | arrays

    def restore(self, **targets):
        if self.newest is None:
            return None
        for name, target in targets.items():
            if hasattr(target, "set_state"):
                target.set_state(self.newest[1][name])
        return self.newest[0], {name: self.newest[1][name] for name in targets}

    def wait(self): ...


def _go_on(held, steps, **options):
    trainer = Trainer(optax.sgd(1e-2), _loss)
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    return trainer.fit(model, held, steps=steps, store=held, **options)


def test_a_last_step_that_is_not_finite_is_no_success_though_all_is_saved():
    held = _Held(bad=[3])
    message = (
        r"the last step of a run must have a finite loss and gradient, got loss=nan, "
        r"grad_norm=nan at step 3 .*; look at that step's batch, or pass a larger steps= to train"
    )
    with pytest.raises(BadStep, match=message) as e:
        _go_on(held, 4)
    assert np.isnan(e.value.batch["x"]).any()
    assert held.newest[0] == 4
    with pytest.raises(BadStep, match=r"got another result at step 3 in an earlier launch.*steps="):
        _go_on(held, 4)
    result = _go_on(held, 6)
    assert (result.step, math.isfinite(result.scalars["loss"])) == (6, True)


def test_a_share_of_a_short_run_is_no_success_though_all_is_saved():
    held = _Held(bad=[2, 4, 6])
    message = (
        r"at most a quarter of the last 11 steps of a run may be skipped, got 3 .*; look at the "
        r"batches of steps 2, 4, 6, lower .* or a larger steps= to train on"
    )
    for _ in range(2):  # the second launch has nothing left to train
        with pytest.raises(BadStep, match=message) as e:
            _go_on(held, 11)
        assert (e.value.skipped, held.newest[0]) == ((2, 4, 6), 11)
    assert _go_on(held, 12).step == 12  # a quarter


@pytest.mark.thorough
@pytest.mark.parametrize("bad, options", [([1, 2], {}), (range(1, 5), {"max_skips": 20})])
def test_a_short_run_may_skip_two_steps_or_as_many_as_are_allowed(bad, options):
    assert _fit(_batches(6, bad=bad), **options).step == 6


class _Refuser:
    """A guard that accepts no step."""

    def begin(self):
        return jnp.zeros(())

    def judge(self, history, *, grad_norm, loss):
        return jnp.bool_(False), history


@pytest.mark.parametrize("steps, options", [(1, {}), (2, {}), (12, {"max_skips": 20})])
def test_a_run_without_an_update_is_no_success_however_short(steps, options):
    message = rf"last {steps} steps of a run may be skipped, got {steps} .*look at the batches of"
    with pytest.raises(BadStep, match=message) as e:
        _fit(_batches(steps), guard=_Refuser(), **options)
    assert e.value.skipped == tuple(range(steps))


def test_a_run_of_five_steps_may_skip_two():
    result = _fit(_batches(5, bad=[1, 3]))
    assert (result.step, result.scalars["skipped"]) == (5, 0)
    with pytest.raises(BadStep, match="the last step of a run must have a finite loss"):
        _fit(_batches(5, bad=[1, 4]))


@pytest.mark.thorough
def test_a_stop_at_a_step_that_is_not_finite_is_no_end():
    assert _go_on(_Held(bad=[3]), 9, stop=lambda step: step == 4).interrupted


@pytest.mark.thorough
def test_the_share_is_counted_over_launches():
    held = _Held(bad=TEN_OF_THIRTY)
    for at in (10, 19, 28):
        assert _go_on(held, 31, stop=lambda step, at=at: step == at).interrupted
    with pytest.raises(BadStep, match="at most a quarter of the last 30 steps may be skipped, got"):
        _go_on(held, 31)

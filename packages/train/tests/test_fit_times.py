# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Times of a run, on a clock of the test: a step takes STEP_S, and all else what the test says."""

import threading

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import Trainer
from dovetail_train.loop.fit import Run

STEP_S, LIMIT_S = 0.125, 120  # the limit only turns a hang into a failure
TIMED = ("step", "skipped", "data", "stall", "hooks", "save")


class _Time:
    """A clock that a completion moves by STEP_S, and else the test alone."""

    def __init__(self):
        self.now, self.completions, self._changed = 1000.0, 0, threading.Condition()

    def __call__(self):
        with self._changed:
            if threading.current_thread().name == "dovetail-completions":
                self.now, self.completions = self.now + STEP_S, self.completions + 1
                self._changed.notify_all()
            return self.now

    def pass_(self, seconds):
        with self._changed:
            self.now += seconds

    def wait(self, completions):
        with self._changed:
            assert self._changed.wait_for(lambda: self.completions == completions, LIMIT_S)


class _Data:
    """Batches that each take some seconds, after every step dispatched before is complete."""

    def __init__(self, time, seconds, *, bad=None):
        self.time, self.seconds, self.bad, self.i = time, seconds, bad, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.time.wait(self.i)
        self.time.pass_(self.seconds.get(self.i, 0.0))
        x = np.random.default_rng(self.i).normal(size=(4, 3)).astype("f4")
        if self.i == self.bad:
            x[1, 2] = np.nan
        self.i += 1
        return {"x": x}

    def get_state(self):
        return self.i

    def set_state(self, state):
        self.i = state


class _Lines:
    def __init__(self, time=None, slow_at=None):
        self.steps, self.time, self.slow_at = {}, time, slow_at

    def write(self, step, scalars):
        if "loss" in scalars:
            self.steps[step] = dict(scalars)
            if step == self.slow_at:
                self.time.pass_(5.0)

    def of(self, name):
        return {step: scalars[name] for step, scalars in self.steps.items() if name in scalars}


class _Store:
    def __init__(self, time):
        self.time = time

    def save(self, step, **items):
        self.time.pass_(3.0)

    def restore(self, **targets):
        return None

    def wait(self):
        pass


class _Hook:
    every = 4

    def __init__(self, time):
        self.time = time

    def __call__(self, trainer, state, step):
        self.time.pass_(7.0)
        return {}


def _loss(model, batch, *, key):
    return (model(batch["x"]) ** 2).sum(), jnp.float32(4)


@pytest.fixture(scope="module")
def trainer():
    return Trainer(optax.sgd(1e-2), _loss)


def _run(trainer, time, data, *, sink, steps=8, **options):
    defaults = {"store": None, "save_every": None, "hooks": (), "stop": None, "resume": "exact"}
    begin = trainer._begin(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    options = defaults | options
    run = Run(trainer, data, begin=begin, steps=steps, sinks=[sink], now=time, **options)
    result = run.run()
    assert [t for t in threading.enumerate() if t.name == "dovetail-completions"] == []
    assert sum(result.seconds.values()) == pytest.approx(time.now - 1000.0, abs=1e-6)
    return {name: result.seconds[name] for name in TIMED if result.seconds[name]}


def _no_stall_but(**stalls):
    return {step: stalls.get(f"step{step}", 0.0) for step in range(1, 8)}


@pytest.mark.thorough
def test_a_slow_source_is_a_stall_and_no_step_is_faster_than_the_devices(trainer):
    time, sink = _Time(), _Lines()
    seconds = _run(trainer, time, _Data(time, {3: 5.0, 6: 0.5}), sink=sink)
    assert sink.of("step_time_s") == dict.fromkeys(range(1, 8), STEP_S)  # not the first: compiled
    assert sink.of("rows_per_s") == dict.fromkeys(range(1, 8), 4 / STEP_S)
    assert sink.of("stall_s") == _no_stall_but(step3=5.0, step6=0.5)
    assert seconds == {"step": 8 * STEP_S, "data": 5.5}


def test_a_busy_host_is_a_stall(trainer):
    time, sink = _Time(), _Lines()

    def stop(step):
        if step == 5:
            time.wait(5)
            time.pass_(5.0)
        return False

    seconds = _run(trainer, time, _Data(time, {}), sink=sink, stop=stop)
    assert sink.of("rows_per_s") == dict.fromkeys(range(1, 8), 4 / STEP_S)
    assert sink.of("stall_s") == _no_stall_but(step5=5.0)
    assert seconds == {"step": 8 * STEP_S, "stall": 5.0}


def test_a_slow_sink_is_a_stall(trainer):
    time = _Time()
    sink = _Lines(time, slow_at=2)
    seconds = _run(trainer, time, _Data(time, {}), sink=sink)
    assert sink.of("step_time_s") == dict.fromkeys(range(1, 8), STEP_S)
    assert sink.of("stall_s") == _no_stall_but(step3=5.0)
    assert seconds == {"step": 8 * STEP_S, "stall": 5.0}


def test_hooks_and_saves_are_neither_steps_nor_stalls(trainer):
    time, sink = _Time(), _Lines()
    options = {"store": _Store(time), "save_every": 3, "hooks": [_Hook(time)]}
    seconds = _run(trainer, time, _Data(time, {2: 5.0}), sink=sink, **options)
    assert sink.of("step_time_s") == dict.fromkeys(range(1, 8), STEP_S)
    assert sink.of("stall_s") == _no_stall_but(step2=5.0)
    # Saves after 3, 6 and 8 steps, hooks after 4 and 8.
    assert seconds == {"step": 8 * STEP_S, "data": 5.0, "save": 9.0, "hooks": 14.0}


def test_a_skipped_step_is_accounted_for_and_timed(trainer):
    time, sink = _Time(), _Lines()
    seconds = _run(trainer, time, _Data(time, {5: 5.0}, bad=5), sink=sink)
    assert sink.of("skipped")[5] == 1.0
    assert sink.of("step_time_s") == dict.fromkeys(range(1, 8), STEP_S)
    assert sink.of("stall_s") == _no_stall_but(step5=5.0)
    assert seconds == {"step": 7 * STEP_S, "skipped": STEP_S, "data": 5.0}


def test_a_run_that_raises_leaves_no_thread(trainer):
    time = _Time()

    def stop(step):
        if step == 3:
            raise KeyboardInterrupt
        return False

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            _run(trainer, time, _Data(time, {}), sink=_Lines(), stop=stop)
        assert [t for t in threading.enumerate() if t.name == "dovetail-completions"] == []
        time = _Time()

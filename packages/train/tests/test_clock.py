# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
from collections import Counter
from typing import get_args

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from dovetail_train import Eval, OrbaxStore, Trainer
from dovetail_train.loop.clock import Activity, Clock, Completion, Rates, Throughput


class _Time:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_activities_sum_to_the_wall_time():
    time = _Time()
    clock = Clock(time)
    for activity, seconds in [("compile", 1), ("step", 2), ("save", 4), ("step", 8), ("hooks", 16)]:
        time.now += seconds  # ends the activity before
        clock.enter(activity)
    time.now += 32
    seconds = clock.seconds()
    expected = {"init": 1, "compile": 2, "step": 4 + 16, "hooks": 32, "save": 8}
    assert seconds == {"data": 0, "draw": 0, "skipped": 0, "stall": 0, **expected}
    assert sum(seconds.values()) == time.now - 100
    assert clock.goodput() == pytest.approx(20 / 63)


def test_only_the_time_since_the_devices_were_idle_is_charged():
    time = _Time()
    clock = Clock(time)
    clock.enter("step")
    time.now += 3  # 103
    clock.charge("data", since=102.0)
    assert (clock.seconds()["step"], clock.seconds()["data"]) == (2, 1)
    time.now += 5
    clock.charge("stall", since=90.0)  # what was charged already does not move
    time.now += 7
    clock.charge("stall", since=None)
    time.now += 11
    clock.charge("stall", since=200.0)
    seconds = clock.seconds()
    assert (seconds["step"], seconds["data"], seconds["stall"]) == (2 + 7 + 11, 1, 5)
    assert sum(seconds.values()) == time.now - 100


def test_the_account_goes_on_after_a_restart():
    time = _Time()
    before, after = Clock(time), Clock(time)
    time.now += 7
    saved = before.get_state()
    after.set_state(saved)
    assert after.seconds()["init"] == 7 + 7


def _rate(*results, rows=3):
    """The scalars of results (completed, left, sent) after a result at 100."""
    rate = Throughput(now=_Time())
    rate.resume()
    return [
        rate.result(Completion(at, left), sent_s=sent, tokens=None, rows=rows)
        for at, left, sent in results
    ]


def test_a_step_takes_the_distance_between_completions():
    rate = Throughput(Rates(flops=40.0, recomputed=10.0, peak_flops=100.0), now=_Time())
    first = rate.result(Completion(100.0, 1), sent_s=90.0, tokens=12.0, rows=3)
    assert first == {}  # nothing to measure from
    assert rate.result(Completion(102.0, 1), sent_s=99.0, tokens=12.0, rows=3) == {
        "step_time_s": 2.0,
        "stall_s": 0.0,
        "tokens_per_s": 6.0,
        "mfu": 40.0 / 2 / 100,
        "hfu": 50.0 / 2 / 100,
    }


def test_time_before_a_late_dispatch_is_a_stall_and_not_in_the_rate():
    # Complete at 101; the host is busy until 106; the step takes 1 s as the others do.
    steps = _rate((101.0, 1, 100.0), (107.0, 1, 106.0), (108.0, 1, 106.5))
    assert [step["step_time_s"] for step in steps] == [1.0, 1.0, 1.0]
    assert [step["stall_s"] for step in steps] == [0.0, 5.0, 0.0]
    assert [step["rows_per_s"] for step in steps] == [3.0, 3.0, 3.0]


def test_a_slow_step_is_slow_and_no_stall():
    steps = _rate((101.0, 1, 100.0), (109.0, 1, 100.5), (110.0, 1, 101.5))
    assert [step["step_time_s"] for step in steps] == [1.0, 8.0, 1.0]
    assert [step["stall_s"] for step in steps] == [0.0, 0.0, 0.0]


def test_steps_that_were_complete_at_once_share_their_time():
    # The interpreter lock was held until 106, long after three steps of 2 s were complete.
    steps = _rate((106.0, 3, 100.0), (106.0, 2, 100.5), (106.0, 1, 101.0), (109.0, 1, 107.0))
    assert [step["step_time_s"] for step in steps] == [2.0, 2.0, 2.0, 2.0]
    assert [step["stall_s"] for step in steps] == [0.0, 0.0, 0.0, 1.0]


def test_steps_within_one_tick_of_the_clock_have_no_rate():
    assert _rate((100.0, 1, 100.0)) == [{"step_time_s": 0.0, "stall_s": 0.0}]


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9), st.integers(1, 3)), max_size=20))
def test_steps_and_stalls_sum_to_the_wall_time(gaps):
    at, results = 100.0, []
    for distance, sent_before, together in gaps:
        at += distance
        results += [(at, left, at - sent_before) for left in range(together, 0, -1)]
    steps = _rate(*results)
    assert all(step["step_time_s"] >= 0 <= step["stall_s"] for step in steps)
    total = sum(step["step_time_s"] + step["stall_s"] for step in steps)
    assert total == pytest.approx(at - 100.0, abs=1e-9)  # 60 additions of float64 around 200


def test_a_compilation_has_no_step_time_and_a_save_does_not_lengthen_one():
    time = _Time()
    rate = Throughput(now=time)
    rate.resume()
    rate.pause()
    assert rate.result(Completion(150.0, 1), sent_s=100.0, tokens=None, rows=3) == {}
    time.now += 60  # a save, until 160
    rate.resume()
    step = rate.result(Completion(164.0, 1), sent_s=160.0, tokens=None, rows=3)
    assert step == {"step_time_s": 4.0, "stall_s": 0.0, "rows_per_s": 0.75}


@pytest.mark.parametrize("flops, peak", [(None, 1.0), (1.0, None)])
def test_without_flops_or_peak_there_is_no_mfu(flops, peak):
    rate = Throughput(Rates(flops=flops, peak_flops=peak), now=_Time())
    rate.resume()
    assert "mfu" not in rate.result(Completion(101.0, 1), sent_s=100.0, tokens=1.0, rows=1)


def test_the_time_of_a_skipped_step_is_lost():
    time = _Time()
    clock = Clock(time)
    clock.enter("step")
    time.now += 10
    assert clock.goodput() == 1.0
    clock.move(4.0, to="skipped")
    assert clock.goodput() == 0.6
    assert clock.seconds()["skipped"] == 4.0


class _Data:
    """Batches of an iterator, or drawn from the newest state."""

    def __init__(self):
        self.i = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.i += 1
        return {"x": np.random.default_rng(self.i).normal(size=(4, 3)).astype("f4")}

    def get_state(self):
        return {"i": self.i}

    def set_state(self, state):
        self.i = state["i"]


class _Drawn(_Data):
    def draw(self, trainer, state, step):
        return next(self)


def _loss(model, batch, *, key):
    return (model(batch["x"]) ** 2).sum(), np.float32(4)


EVERY_RUN = {"init": 1, "compile": 1, "hooks": 2, "save": 3}  # the last save is the end of the run


# jaxlib 0.12 aborts where its warning about the type of the statistics is an error.
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning")
@pytest.mark.parametrize("data, batches", [(_Data, {"data": 4}), (_Drawn, {"draw": 4})])
def test_a_trace_has_every_step_and_the_activities_of_the_clock(tmp_path, data, batches):
    held_out = Eval([next(_Data())], every=2, metrics={"loss": _loss})
    options = {"store": OrbaxStore(tmp_path / "run"), "save_every": 2, "hooks": [held_out]}
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    with jax.profiler.trace(tmp_path / "trace"):
        Trainer(optax.adam(1e-2), _loss, ema=0.9).fit(model, data(), steps=4, **options)
    [file] = (tmp_path / "trace").rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(file)).planes
    events = [event for plane in planes for line in plane.lines for event in line.events]
    steps = [event for event in events if event.name == "train"]
    assert [dict(event.stats)["step_num"] for event in steps] == [0, 1, 2, 3]
    seen = Counter(event.name for event in events if event.name in get_args(Activity))
    assert seen == EVERY_RUN | batches
    [compiled] = [event for event in events if event.name == "compile"]
    assert steps[0].start_ns <= compiled.start_ns <= compiled.end_ns <= steps[0].end_ns
    programs = {dict(event.stats).get("hlo_module") for event in events}
    assert {"jit_train_step", "jit_evaluate", "jit_init_optimizer", "jit_init_averages"} <= programs

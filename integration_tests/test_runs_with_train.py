# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A launch is a sink of the trainer and of plain loops; both readers of metrics agree."""

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_checkpoint import Store, rewind
from dovetail_runs import Run, devices_of, read_metrics, summary
from dovetail_train import Jsonl, Trainer, read_jsonl

X = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)


class _Data:
    """Other rows at each step, by number."""

    def __init__(self):
        self.count = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.count += 1
        return {"x": np.roll(X, self.count, axis=0)[:5]}

    def get_state(self):
        return {"count": self.count}

    def set_state(self, state):
        self.count = state["count"]


def _loss(model, batch, *, key):
    error = (model(batch["x"]) - batch["x"].sum(1, keepdims=True)) ** 2
    return error.sum(), error.size * 1.0


def _fit(run, steps, **options):
    """A launch that trains up to a step."""
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    with run.launch({"rate": 0.1}, devices=devices_of(jax.devices())) as launch:
        Trainer(optax.adam(0.1), _loss).fit(model, _Data(), steps=steps, sinks=[launch], **options)


@pytest.mark.thorough
def test_launches_of_the_trainer_are_one_curve_and_that_of_an_unbroken_run(tmp_path):
    unbroken, run = Run(tmp_path / "unbroken"), Run(tmp_path / "run")
    _fit(unbroken, 12)
    with Store(tmp_path / "steps") as store:
        _fit(run, 8, store=store, save_every=5)
    rewind(tmp_path / "steps", 5)  # as if the first launch had been killed before it saved step 8
    with Store(tmp_path / "steps") as store:
        _fit(run, 12, store=store)

    expected, curve = unbroken.metrics.curve("loss"), run.metrics.curve("loss")
    assert curve.steps.tolist() == expected.steps.tolist() == list(range(12))
    assert curve.values.tolist() == expected.values.tolist()  # a resume is exact in every bit
    lines = run.metrics.lines
    losses = lines.steps[~np.isnan(lines.column("loss"))]
    assert losses.tolist() == [*range(8), *range(5, 12)]
    assert [event["event"] for event in run.events] == ["start", "end"] * 2
    assert run.launches[1]["devices"] == devices_of(jax.devices())
    assert (run.state, summary(run).step) == ("finished", 12)
    assert run.account.repeated_s > 0 == unbroken.account.repeated_s
    _assert_equal_readers(run.path)


@pytest.mark.thorough
def test_a_plain_loop_of_flax_is_recorded(tmp_path):
    model, losses = nnx.Linear(3, 1, rngs=nnx.Rngs(0)), []
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def update(model, optimizer):
        loss, grads = nnx.value_and_grad(lambda m: ((m(X) - X[:, :1]) ** 2).mean())(model)
        optimizer.update(model, grads)
        return loss

    run = Run(tmp_path / "run")
    with run.launch({"rate": 0.1}, devices=devices_of(jax.devices())) as launch:
        for step in range(4):
            losses.append(update(model, optimizer))
            launch.write(step, {"loss": losses[-1]})  # an array of no dimension
    assert run.metrics.curve("loss").values.tolist() == [float(loss) for loss in losses]
    assert losses[3] < losses[0]
    assert run.launches[0]["versions"]["flax"]


class _Clock:
    """Unix time that goes on by random amounts."""

    def __init__(self, rng):
        self.rng, self.time_s = rng, 1.8e9

    def __call__(self):
        self.time_s += self.rng.uniform(0, 2)
        return self.time_s


def _write(path, seed):
    """Launches of a loop that is killed: some in the middle of a line, most go on before the end.

    Each has a step without its time, a stall, an evaluation, a skipped step and an account.
    """
    rng, begin = np.random.default_rng(seed), 0
    clock = _Clock(rng)
    for number in range(6):
        sink, end = Jsonl(path, now=clock), begin + int(rng.integers(6, 12))
        odd = dict(
            zip(("plain", "stall", "skip"), rng.permutation(range(begin, end)), strict=False)
        )
        for step in range(begin, end):
            scalars = {"loss": float(rng.normal()), "step_time_s": float(rng.uniform())}
            if step == odd["plain"]:
                del scalars["step_time_s"]
            if step == odd["stall"]:
                scalars["stall_s"] = float(rng.uniform())
            if step == odd["skip"]:
                scalars |= {"loss": float("nan"), "skipped": 1.0}
            sink.write(step, scalars)
            if rng.uniform() < 0.4:  # of the state after this step
                sink.write(step + 1, {"eval/loss": float(rng.choice([rng.normal(), np.inf]))})
        share = {"goodput": float(rng.uniform()), "seconds/step": float(rng.uniform())}
        slow = {"straggler": 3.0, "straggler/data": 9.5, "straggler/others": float(rng.uniform())}
        sink.write(end, share | (slow if number % 2 == seed % 2 else {}))
        if rng.uniform() < 0.5:
            with path.open("a") as file:
                file.write('{"step": 7, "generation"')
        clock.time_s += float(rng.uniform(1, 50))
        begin = 0 if rng.uniform() < 0.1 else int(rng.integers(begin, end + 1))


def _assert_equal_readers(folder):
    """Asserts that the readers of both packages agree; returns the account."""
    file = folder / "metrics.jsonl"
    rows, metrics = read_jsonl(file), read_metrics(file)
    names = dict.fromkeys(name for row in rows for name in row)
    assert names.keys() - set(metrics.names) == {"step", "generation", "time_s"}
    for name in metrics.names:
        steps = [row["step"] for row in rows if name in row]
        values = [np.nan if row[name] is None else row[name] for row in rows if name in row]
        curve = metrics.curve(name)
        assert curve.steps.tolist() == steps
        np.testing.assert_array_equal(curve.values, values)  # NaN equals NaN
    return Run(folder).account


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.capability("curves and account of a trainer's file, read without JAX")
def test_both_readers_agree_on_a_file_of_many_launches(tmp_path, seed):
    _write(tmp_path / "metrics.jsonl", seed)
    account = _assert_equal_readers(tmp_path)
    seconds = [account.step_s, account.skipped_s, account.repeated_s]
    assert min(*seconds, account.stalled_s, account.idle_s) > 0
    assert (account.straggler is not None) is bool(seed % 2)

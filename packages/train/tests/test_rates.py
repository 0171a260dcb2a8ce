# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import Trainer
from dovetail_train.step.rates import learning_rates

WARMUP, STEPS, PEAK = 3, 12, 1e-2
SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, PEAK, WARMUP, STEPS, end_value=PEAK / 20)
PARAMS = {"up": {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}}
KINDS = {"up": {"kernel": "matrix", "bias": "other"}}


def _by_hand(step):
    """The schedule in NumPy."""
    if step < WARMUP:
        return PEAK * step / WARMUP
    share = min(1.0, (step - WARMUP) / (STEPS - WARMUP))
    low = PEAK / 20
    return low + (PEAK - low) * 0.5 * (1 + np.cos(np.pi * share))


class _Hidden:
    """A transformation of our own, with a rate that nobody knows of."""

    def __init__(self, learning_rate):
        self.learning_rate = learning_rate

    def init(self, params):
        return optax.TraceState(jnp.zeros((), jnp.int32))

    def update(self, updates, state, params=None):
        rate = self.learning_rate(state.trace)
        return jax.tree.map(lambda u: -rate * u, updates), optax.TraceState(state.trace + 1)


class _Rated(_Hidden):
    """The same as dovetail-optim's: it tells its rate."""

    def learning_rate_of(self, state):
        return self.learning_rate(state.trace) if isinstance(state, optax.TraceState) else None


def _of(make):
    own = make(SCHEDULE)
    return optax.GradientTransformation(own.init, own.update)


def _by_hand_chain():
    return optax.chain(optax.scale_by_adam(), optax.scale_by_schedule(SCHEDULE), optax.scale(-1.0))


def _kernels(params):
    return {"up": {"kernel": True, "bias": False}}


def _given(learning_rate):
    return optax.chain(optax.clip(1.0), optax.adam(learning_rate))


ALONE = {"learning_rate": _by_hand}
GROUPS = {"learning_rate/matrix": _by_hand, "learning_rate/other": lambda step: 0.5}
CASES = {
    "groups": (
        lambda: optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.partition({"matrix": optax.adamw(SCHEDULE), "other": optax.sgd(0.5)}, KINDS),
        ),
        GROUPS,
    ),
    "adamw": (lambda: optax.adamw(SCHEDULE), ALONE),
    "a number": (lambda: optax.adamw(0.5), {"learning_rate": lambda step: 0.5}),
    "adafactor": (lambda: optax.adafactor(SCHEDULE), ALONE),
    "by hand": (_by_hand_chain, ALONE),
    "injected": (lambda: optax.inject_hyperparams(optax.adamw)(learning_rate=SCHEDULE), ALONE),
    "injected chain": (lambda: optax.inject_hyperparams(_given)(learning_rate=SCHEDULE), ALONE),
    "wrapped": (lambda: optax.apply_if_finite(optax.lion(SCHEDULE), 3), ALONE),
    "masked": (lambda: optax.masked(optax.adam(SCHEDULE), _kernels), ALONE),
    "an object": (lambda: _of(_Rated), ALONE),
    "around groups": (
        lambda: optax.chain(
            optax.partition({"matrix": optax.scale_by_adam(), "other": optax.identity()}, KINDS),
            optax.scale_by_learning_rate(SCHEDULE),
        ),
        ALONE,
    ),
    "frozen": (
        lambda: optax.partition(
            {"matrix": optax.adam(SCHEDULE), "other": optax.set_to_zero()}, KINDS
        ),
        {"learning_rate/matrix": _by_hand},
    ),
    "optax's muon": (
        lambda: optax.contrib.muon(SCHEDULE, adam_learning_rate=0.5),
        {"learning_rate/adam": lambda step: 0.5, "learning_rate/muon": _by_hand},
    ),
    # The rest may scale the updates, so that no number is the rate.
    "two schedules": (
        lambda: optax.chain(optax.adam(SCHEDULE), optax.scale_by_schedule(SCHEDULE)),
        {},
    ),
    "a factor": (lambda: optax.chain(optax.scale(0.1), optax.adam(SCHEDULE)), {}),
    "a schedule of unknown sign": (lambda: optax.scale_by_schedule(lambda n: -SCHEDULE(n)), {}),
    "an estimated rate": (lambda: optax.contrib.prodigy(SCHEDULE), {}),
    "prodigy's schedule": (
        lambda: optax.chain(optax.contrib.prodigy(), optax.scale_by_learning_rate(SCHEDULE)),
        {},
    ),
    "plateaus": (lambda: optax.chain(optax.adam(0.5), optax.contrib.reduce_on_plateau()), {}),
    "a search": (lambda: optax.lbfgs(0.5), {}),
    "an object without a rate": (lambda: _of(_Hidden), {}),
}
# A factor of all updates, around groups.
CASES["a factor around groups"] = (lambda: optax.chain(CASES["groups"][0](), optax.scale(0.1)), {})
FIRST, *OTHERS = CASES


def _sum(params):
    return sum(x.sum() for x in jax.tree.leaves(params))


def _measured(name):
    """Returns the rates of five updates, outside of jit, and the expected ones."""
    make, wanted = CASES[name]
    tx = make()
    state, grads, measured = tx.init(PARAMS), PARAMS, []
    extra = {"value": 1.0} if name == "plateaus" else {}
    if name == "a search":
        extra = {"value": _sum(PARAMS), "grad": grads, "value_fn": _sum}
    for _ in range(5):
        _, after = tx.update(grads, state, PARAMS, **extra)
        measured.append(learning_rates(tx, state, lambda after=after: after))
        state = after
    return measured, [{k: rate(i) for k, rate in wanted.items()} for i in range(5)]


@pytest.mark.parametrize(
    "name", [FIRST, *(pytest.param(x, marks=pytest.mark.thorough) for x in OTHERS)]
)
def test_the_rate_is_that_of_the_schedule_or_there_is_none(name):
    measured, wanted = _measured(name)
    assert [sorted(x) for x in measured] == [sorted(x) for x in wanted]
    for found, want in zip(measured, wanted, strict=True):
        for key, value in want.items():  # float32 of a cosine
            np.testing.assert_allclose(found[key], value, rtol=1e-6, atol=1e-9)


# In a run.


class _Batches:
    def __init__(self, bad):
        self.i, self._bad = 0, bad

    def __iter__(self):
        return self

    def __next__(self):
        x = np.random.default_rng(self.i).normal(size=(8, 3)).astype("f4")
        x[1] = np.nan if self.i in self._bad else x[1]
        self.i += 1
        return {"x": x}

    def get_state(self):
        return {"i": self.i}

    def set_state(self, state):
        self.i = state["i"]


class _Memory:
    """The newest step, with JSON texts of objects."""

    newest = None

    def save(self, step, **items):
        held = {
            name: json.dumps(x.get_state()) if hasattr(x, "get_state") else jax.device_get(x)
            for name, x in items.items()
        }
        self.newest = step, held

    def restore(self, **targets):
        if self.newest is None:
            return None
        for name, target in targets.items():
            if hasattr(target, "set_state"):
                target.set_state(json.loads(self.newest[1][name]))
        return self.newest[0], {name: self.newest[1][name] for name in targets}

    def wait(self): ...


class _Lines(dict):
    def write(self, step, scalars):
        self.setdefault(step, {}).update(scalars)


def _loss(model, batch, *, key):
    return (model(batch["x"]) ** 2).sum(), jnp.float32(batch["x"].shape[0])


@pytest.mark.parametrize(
    "tx",
    [
        optax.adamw(SCHEDULE),
        pytest.param(
            optax.inject_hyperparams(optax.adamw)(learning_rate=SCHEDULE),
            marks=pytest.mark.thorough,
        ),
    ],
    ids=["adamw", "injected"],
)
def test_a_run_reports_the_rate_of_each_step_over_skips_and_a_resume(tx):
    bad, lines, store = (2, 5), _Lines(), _Memory()
    for steps in (5, 10):
        trainer = Trainer(tx, _loss, accumulate=2)
        model, data = nnx.Linear(3, 2, rngs=nnx.Rngs(0)), _Batches(bad)
        trainer.fit(model, data, steps=steps, store=store, sinks=[lines])
    assert [lines[i]["skipped"] for i in range(10)] == [float(i in bad) for i in range(10)]
    # A skipped update does not move the schedule: its rate is that of the next one.
    updates = [i - sum(each < i for each in bad) for i in range(10)]
    found = [lines[i]["learning_rate"] for i in range(10)]
    np.testing.assert_allclose(found, [_by_hand(n) for n in updates], rtol=1e-6, atol=1e-9)
    assert math.isnan(lines[5]["loss"])


@pytest.mark.thorough
def test_the_rate_adds_no_work_and_no_buffer_to_the_step(monkeypatch):
    """The probe for hyperparameters is a second update, of which XLA keeps the schedule alone."""

    def compiled():
        tx = optax.inject_hyperparams(optax.adamw)(learning_rate=SCHEDULE)
        model = nnx.Linear(300, 20, rngs=nnx.Rngs(0))
        batch = {"x": np.zeros((8, 300), "f4")}
        return Trainer(tx, _loss, accumulate=2).program(model, batch).compile()

    measured = compiled()
    monkeypatch.setattr("dovetail_train.step.update.learning_rates", lambda *args: {})
    bare = compiled()
    flops = [x.cost_analysis()["flops"] for x in (measured, bare)]
    assert flops[0] - flops[1] < 100 < flops[1]
    memory = [x.memory_analysis() for x in (measured, bare)]
    assert memory[0].alias_size_in_bytes == memory[1].alias_size_in_bytes > 3 * 300 * 20 * 4
    assert memory[0].temp_size_in_bytes <= memory[1].temp_size_in_bytes + 256


@pytest.mark.thorough
def test_the_rate_on_eight_devices_is_that_of_the_schedule(on_eight_devices):
    wanted = [_by_hand(n) for n in (0, 1, 2, 2, 3)]  # step 2 is skipped
    for found in on_eight_devices("rates.py").values():
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-9)

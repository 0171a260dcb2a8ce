# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import Eval, StopRun, Trainer


class _Data:
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


class _Memory:
    """A Store in memory."""

    def __init__(self):
        self.steps = {}

    def save(self, step, **items):
        self.steps[step] = {
            name: item.get_state() if hasattr(item, "get_state") else item
            for name, item in items.items()
        }

    def restore(self, **targets):
        if not self.steps:
            return None
        step = max(self.steps)
        for name, target in targets.items():
            if hasattr(target, "set_state"):
                target.set_state(self.steps[step][name])
        return step, self.steps[step]

    def wait(self):
        pass


class _Lines(list):
    def write(self, step, scalars):
        self.append((step, dict(scalars)))

    def of(self, name):
        return [(step, scalars[name]) for step, scalars in self if name in scalars]


class Returning:
    """A hook that returns the next of its results, and the last one from then on."""

    def __init__(self, *results, every=1):
        self.every, self.results, self.steps = every, results, []

    def __call__(self, trainer, state, step):
        self.steps.append(step)
        return self.results[min(len(self.steps), len(self.results)) - 1]


class InParts(Returning):
    def run_in_parts(self, trainer, state, step):
        yield
        return self(trainer, state, step)


def without_return(trainer, state, step):
    pass


without_return.every = 1


def _fit(*hooks, steps=3, **options):
    trainer = Trainer(optax.sgd(1e-2), lambda m, b, *, key: ((m(b["x"]) ** 2).sum(), 4.0))
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    return trainer.fit(model, _Data(), steps=steps, hooks=list(hooks), **options)


def test_a_hook_without_return_has_no_scalars_and_does_not_end_the_run():
    store, lines, last = _Memory(), _Lines(), Returning({"last": 1})
    hooks = [without_return, Returning(None), InParts(None), last]
    result = _fit(*hooks, store=store, save_every=1, sinks=[lines])
    assert (result.step, result.interrupted, list(store.steps)) == (3, False, [1, 2, 3])
    assert [hook.steps for hook in hooks[1:]] == [[1, 2, 3]] * 3
    assert lines.of("last") == [(1, 1.0), (2, 1.0), (3, 1.0)]
    assert store.steps[3]["hooks"]["pending_hooks"] == 0


@pytest.mark.parametrize(
    "kind", [Returning, pytest.param(InParts, marks=pytest.mark.thorough)], ids=["whole", "parts"]
)
def test_a_hook_ends_the_run_by_its_own_value_and_the_resumed_run_goes_on(kind):
    store, lines = _Memory(), _Lines()
    ends, after = kind({"a": 1}, StopRun({"a": jnp.float32(2)}), {"a": 3}), Returning({"b": 1})
    result = _fit(ends, after, steps=5, store=store, sinks=[lines])
    assert (result.step, result.interrupted, list(store.steps)) == (2, True, [2])
    assert (lines.of("a"), after.steps) == ([(1, 1.0), (2, 2.0)], [1])
    resumed = _fit(ends, after, steps=5, store=store, sinks=[lines])
    assert (resumed.step, resumed.interrupted) == (5, False)
    # The hook that ended the run had finished; the one after it was pending.
    assert (ends.steps, after.steps) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])


def test_a_subclass_that_replaces_the_call_alone_is_called():
    class Patient(Eval):
        def __call__(self, trainer, state, step):
            return StopRun(super().__call__(trainer, state, step))

    loss = {"loss": lambda model, batch, *, key: (model(batch["x"]).sum(), 4.0)}
    result = _fit(Patient([{"x": np.ones((2, 3), np.float32)}], every=1, metrics=loss))
    assert (result.step, result.interrupted) == (1, True)


def test_a_hook_that_ends_the_last_step_interrupts_nothing():
    result = _fit(Returning(StopRun()), steps=1)
    assert (result.step, result.interrupted) == (1, False)


def _generator():
    yield 1.0


REFUSED = [[1.0], 0.5, True, False, "loss", StopRun, {"a": "b"}, {"a": "3"}, {1: 2.0}]
REFUSED += [{"a": [1, 2]}, {"a": None}, _generator(), ("a", 1.0), {"a": np.ones(3)}]


@pytest.mark.parametrize(
    "result", [REFUSED[0], *(pytest.param(x, marks=pytest.mark.thorough) for x in REFUSED[1:])]
)
def test_other_results_of_a_hook_are_refused_by_its_name(result, unchecked):
    def early_stopping(trainer, state, step):
        return result

    early_stopping.every = 1
    for hook, name in (early_stopping, "early_stopping"), (InParts(result), "InParts"):
        with pytest.raises(
            TypeError,
            match=rf"must return scalars by name, StopRun\(scalars\) to end .* got {name} "
            r"returning .*; write return \{'name': value\}",
        ):
            _fit(hook)


def test_parts_that_are_no_generator_are_refused_by_name(unchecked):
    class Whole(Returning):
        def run_in_parts(self, trainer, state, step):
            return {"a": 1.0}

    with pytest.raises(
        TypeError, match=r"must be a generator, got Whole.run_in_parts .*; write `yield`"
    ):
        _fit(Whole({}))

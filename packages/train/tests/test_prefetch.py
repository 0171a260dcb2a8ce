# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import Trainer
from dovetail_train.loop.prefetch import DrawnData, Draws, Prefetch


class _Numbers:
    def __init__(self, end):
        self.i, self.end = 0, end

    def __iter__(self):
        return self

    def __next__(self):
        if self.i == self.end:
            raise StopIteration
        self.i += 1
        return {"x": self.i}

    def get_state(self):
        return {"i": self.i}

    def set_state(self, state):
        self.i = state["i"]


def _placed(batch):
    return ("placed", batch["x"])


def test_the_state_is_that_of_the_batch_delivered_not_of_the_one_ahead():
    data = _Numbers(5)
    ahead = Prefetch(data, _placed)
    assert ahead.get_state() == {"i": 0}
    ahead.fill()
    assert (data.i, ahead.get_state()) == (1, {"i": 0})
    assert next(ahead) == ("placed", 1)
    ahead.fill()
    ahead.fill()
    assert (data.i, ahead.get_state()) == (2, {"i": 1})


def test_setting_the_state_forgets_what_was_fetched_ahead():
    ahead = Prefetch(_Numbers(5), _placed)
    next(ahead)
    ahead.fill()
    ahead.set_state({"i": 3})
    assert ahead.get_state() == {"i": 3}
    assert list(ahead) == [("placed", 4), ("placed", 5)]


def test_the_end_of_the_data_comes_after_the_last_batch():
    ahead = Prefetch(_Numbers(2), _placed)
    assert [x for _, x in ahead] == [1, 2]
    ahead.fill()
    with pytest.raises(StopIteration):
        next(ahead)


def test_data_without_a_state_can_be_read_but_not_resumed():
    ahead = Prefetch(iter([{"x": 1}]), _placed)
    assert next(ahead) == ("placed", 1)
    with pytest.raises(RuntimeError, match=r"must have set_state.*got list_iterator; pass an iter"):
        ahead.set_state({"i": 0})


class _Drawn:
    """Batches made from the parameters: inputs that the policy scores highest of a few."""

    def __init__(self, events):
        self.events, self.calls = events, 0

    def draw(self, trainer, state, step):
        self.events.append(("draw", step, int(state.step)))
        self.calls += 1
        x = np.random.default_rng(self.calls).normal(size=(64, 3)).astype("f4")
        scores = x @ np.asarray(state.params["kernel"])[:, 0]
        return {"x": x[np.argsort(scores)[-4:]]}

    def get_state(self):
        return self.calls

    def set_state(self, state):
        self.calls = state


class _Hook:
    def __init__(self, events, every):
        self.events, self.every = events, every

    def __call__(self, trainer, state, step):
        self.events.append(("hook", step))
        return {}


class _Sink:
    def __init__(self, events):
        self.events, self.losses = events, {}

    def write(self, step, scalars):
        if "loss" in scalars:
            self.events.append(("result", step))
            self.losses[step] = scalars["loss"]


class _Store:
    """Keeps the newest save: arrays as NumPy, objects as their states."""

    saved = None

    def save(self, step, **items):
        objects = {k: v.get_state() for k, v in items.items() if hasattr(v, "get_state")}
        trees = {k: jax.tree.map(np.asarray, v) for k, v in items.items() if k not in objects}
        self.saved = step, objects, trees

    def restore(self, **targets):
        if self.saved is None:
            return None
        step, objects, trees = self.saved
        for name, state in objects.items():
            targets[name].set_state(state)
        return step, jax.tree.map(jnp.asarray, trees)

    def wait(self):
        pass


def _squares(model, batch, *, key):
    return (model(batch["x"]) ** 2).sum(), jnp.float32(4)


def _fit(data, steps, **options):
    trainer = Trainer(optax.sgd(0.05), _squares)
    return trainer.fit(nnx.Linear(3, 1, rngs=nnx.Rngs(0)), data, steps=steps, **options)


@pytest.mark.thorough
def test_a_batch_is_drawn_from_the_newest_state_after_results_and_hooks():
    events = []
    result = _fit(_Drawn(events), 3, hooks=[_Hook(events, every=1)], sinks=[_Sink(events)])
    assert events == [
        *[("draw", 0, 0), ("result", 0), ("hook", 1)],
        *[("draw", 1, 1), ("result", 1), ("hook", 2)],
        *[("draw", 2, 2), ("result", 2), ("hook", 3)],
    ]
    assert result.seconds["draw"] > 0


def test_a_run_on_drawn_data_is_the_loop_by_hand():
    sink, data = _Sink([]), _Drawn([])
    result = _fit(_Drawn([]), 6, sinks=[sink])
    trainer = Trainer(optax.sgd(0.05), _squares)
    state, losses = trainer.init(nnx.Linear(3, 1, rngs=nnx.Rngs(0))), {}
    for step in range(6):
        state, metrics = trainer.step(state, data.draw(trainer, state, step))
        losses[step] = metrics.read()["loss"]
    assert sink.losses == losses
    np.testing.assert_array_equal(result.state.params["kernel"], state.params["kernel"])


@pytest.mark.thorough
def test_a_run_on_drawn_data_resumes_bit_for_bit():
    whole, pieces, store = _Sink([]), _Sink([]), _Store()
    _fit(_Drawn([]), 7, sinks=[whole])
    _fit(_Drawn([]), 3, sinks=[pieces], store=store)
    resumed = _Drawn([])
    _fit(resumed, 7, sinks=[pieces], store=store)
    assert resumed.events[0] == ("draw", 3, 3)
    assert pieces.losses == whole.losses


def test_drawn_data_without_a_state_serve_a_run_without_a_store():
    class Plain:
        def draw(self, trainer, state, step):
            return {"x": np.ones((4, 3), "f4")}

    assert isinstance(Plain(), DrawnData)
    assert _fit(Plain(), 2).step == 2
    assert Draws(Plain(), _placed).get_state() is None
    with pytest.raises(ValueError, match=r"data must have get_state and set_state .*Plain"):
        _fit(Plain(), 2, store=_Store())


def test_data_that_are_neither_are_refused_with_what_to_pass(unchecked):
    with pytest.raises(TypeError, match=r"iterable .*or an object with draw\(.*got int; pass"):
        _fit(3, 2)

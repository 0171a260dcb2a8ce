# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import BadStep, Eval, Trainer, Watch


class _Data:
    """Rows by number; `bad` is the batch with a NaN."""

    def __init__(self, *, end=None, bad=None):
        self.i, self.end, self.bad = 0, end, bad

    def __iter__(self):
        return self

    def __next__(self):
        if self.i == self.end:
            raise StopIteration
        x = self.rows(self.i, bad=self.bad)
        self.i += 1
        return {"x": x}

    @staticmethod
    def rows(i, *, bad=None):
        x = np.random.default_rng(i).normal(size=(4, 3)).astype("f4")
        if i == bad:
            x[1, 2] = np.nan
        return x

    def get_state(self):
        return {"i": self.i}

    def set_state(self, state):
        self.i = state["i"]


class _Memory:
    """A Store in memory: arrays as NumPy, objects as their state."""

    def __init__(self):
        self.steps = {}

    def save(self, step, **items):
        self.steps[step] = {
            name: item.get_state() if hasattr(item, "get_state") else _copy(item)
            for name, item in items.items()
        }

    def restore(self, **targets):
        if not self.steps:
            return None
        step = max(self.steps)
        saved = dict(self.steps[step])
        for name, target in targets.items():
            if hasattr(target, "set_state"):
                target.set_state(saved[name])
        return step, {name: _copy(item) for name, item in saved.items()}

    def wait(self):
        self.waited = True


def _copy(item):
    return jax.tree.map(lambda x: x + 0 if hasattr(x, "dtype") else x, item)


class _Lines:
    def __init__(self):
        self.lines = []

    def write(self, step, scalars):
        self.lines.append((step, dict(scalars)))

    def of(self, name):
        return [(step, scalars[name]) for step, scalars in self.lines if name in scalars]


class _Sum:
    """A hook with a state: how often it was called."""

    def __init__(self, every):
        self.every, self.calls = every, 0

    def __call__(self, trainer, state, step):
        self.calls += 1
        return {"seen": float(state.step), "kernel": float(jnp.abs(state.params["kernel"]).sum())}

    def get_state(self):
        return self.calls

    def set_state(self, state):
        self.calls = state


def _loss(model, batch, *, key):
    return (model(batch["x"]) ** 2).sum(), jnp.float32(4)


def _fit(data, **options):
    trainer = Trainer(optax.adam(1e-2), _loss)
    return trainer.fit(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), data, **options)


def test_the_scalars_of_step_n_describe_the_state_after_n_updates():
    sink, hook = _Lines(), _Sum(every=1)
    result = _fit(_Data(), steps=5, sinks=[sink], hooks=[hook])
    assert (result.step, int(result.state.step), result.interrupted) == (5, 5, False)
    assert [step for step, _ in sink.of("loss")] == [0, 1, 2, 3, 4]
    assert sink.of("seen") == [(n, n) for n in range(1, 6)]
    kernel, bias = np.asarray(nnx.Linear(3, 2, rngs=nnx.Rngs(0)).kernel[...]), 0.0
    first = ((next(_Data())["x"].astype(np.float64) @ kernel + bias) ** 2).sum() / 4
    assert sink.of("loss")[0][1] == pytest.approx(first, rel=1e-6)
    assert result.scalars["loss"] == sink.of("loss")[-1][1]


def test_every_step_is_reported_once_and_in_order_when_nothing_is_waited_for():
    sink = _Lines()
    _fit(_Data(), steps=9, sinks=[sink])
    assert [step for step, _ in sink.lines] == list(range(10))  # the last says where time went
    timed = [step for step, scalars in sink.lines if "step_time_s" in scalars]
    assert timed == list(range(1, 9))  # not the first, which compiled
    assert all("rows_per_s" in scalars for step, scalars in sink.lines[1:9])


@pytest.mark.thorough
def test_another_shape_compiles_and_is_not_timed():
    sink = _Lines()
    data = [{"x": np.ones((n, 3), "f4")} for n in (4, 4, 6, 6, 4)]
    _fit(data, steps=5, sinks=[sink])
    assert [step for step, scalars in sink.lines if "step_time_s" in scalars] == [1, 3, 4]


@pytest.mark.thorough
def test_saves_hold_the_position_of_the_batch_that_was_delivered():
    store, data = _Memory(), _Data()
    _fit(data, steps=7, store=store, save_every=3)
    assert sorted(store.steps) == [3, 6, 7]
    assert {step: items["data"] for step, items in store.steps.items()} == {
        3: {"i": 3},
        6: {"i": 6},
        7: {"i": 7},
    }
    assert set(store.steps[7]) == {"params", "train", "data", "hooks", "description"}
    assert set(store.steps[7]["train"]) == {"step", "frozen", "rest", "opt", "skips"}
    assert data.i == 7  # nothing is fetched that no step needs
    assert store.waited


@pytest.mark.thorough
def test_a_run_in_pieces_is_the_run_in_one():
    whole, pieces, store = _Lines(), _Lines(), _Memory()
    want = _fit(_Data(), steps=9, sinks=[whole], hooks=[_Sum(2)])
    for steps in (4, 4, 9):
        hook = _Sum(2)
        got = _fit(_Data(), steps=steps, store=store, sinks=[pieces], hooks=[hook])
    assert pieces.of("loss") == whole.of("loss")
    assert pieces.of("kernel") == whole.of("kernel")
    np.testing.assert_array_equal(got.state.params["kernel"], want.state.params["kernel"])
    assert hook.calls == 4


def test_stop_saves_and_says_that_it_interrupted():
    store, polled = _Memory(), []

    def stop(step):
        polled.append(step)
        return step == 3

    result = _fit(_Data(), steps=9, store=store, stop=stop)
    assert (result.step, result.interrupted, polled) == (3, True, [1, 2, 3])
    assert list(store.steps) == [3]
    finished = _fit(_Data(), steps=3, store=store, stop=lambda step: True)
    assert (finished.step, finished.interrupted) == (3, False)  # it had ended already


class _Asked:
    """A `stop` that says no `times` times, then yes, once."""

    def __init__(self, times):
        self.times, self.asked = times, 0

    def __call__(self, step):
        self.asked += 1
        return self.asked == self.times + 1


def _evaluated(sink, hook, *, steps=4, **options):
    """After every second step a count, an evaluation over three batches, and a count."""
    held_out = [{"x": _Data.rows(i)} for i in range(20, 23)]
    evaluation = Eval(held_out, every=2, metrics={"loss": _loss})
    hooks = [hook, evaluation, _Sum(2)]
    return _fit(_Data(), steps=steps, sinks=[sink], hooks=hooks, **options)


@pytest.mark.thorough
def test_a_request_to_stop_is_heard_anywhere_and_nothing_is_lost_or_done_twice():
    whole, never = _Lines(), _Asked(times=99)
    want = _evaluated(whole, _Sum(2), stop=never)
    # After each update, after each hook, and in the evaluation after each batch.
    assert never.asked == 4 + 2 * (3 + 3)
    wanted = {name: whole.of(name) for name in ("loss", "seen", "eval/loss")}
    assert [step for step, _ in wanted["eval/loss"]] == [2, 4]
    ends = []
    for times in range(never.asked):
        store, pieces = _Memory(), _Lines()
        first = _evaluated(pieces, _Sum(2), store=store, stop=_Asked(times))
        ends.append((first.step, first.interrupted))
        assert list(store.steps) == [first.step]
        hook = _Sum(2)
        got = _evaluated(pieces, hook, store=store)
        assert {name: pieces.of(name) for name in wanted} == wanted
        assert (got.step, got.interrupted, hook.calls) == (4, False, 2)
        np.testing.assert_array_equal(got.state.params["kernel"], want.state.params["kernel"])
    # With its last hook called, the run that was to end has ended by itself.
    assert ends == [(1, True)] + [(2, True)] * 7 + [(3, True)] + [(4, True)] * 6 + [(4, False)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "steps, again", [(4, lambda values: []), (2, lambda values: values)], ids=["went on", "ended"]
)
def test_hooks_that_a_run_owes_are_called_until_a_later_step_is_saved(steps, again):
    store, whole = _Memory(), _Lines()
    _evaluated(whole, _Sum(2), steps=steps)
    # In the evaluation after step 2; then again, with one of its batches computed.
    assert _evaluated(_Lines(), _Sum(2), steps=steps, store=store, stop=_Asked(3)).interrupted
    assert store.steps[2]["hooks"]["pending_hooks"] == 2
    assert _evaluated(_Lines(), _Sum(2), steps=steps, store=store, stop=_Asked(1)).interrupted
    for wanted in (whole.of("eval/loss"), again(whole.of("eval/loss"))):
        hook, pieces = _Sum(2), _Lines()
        got = _evaluated(pieces, hook, steps=steps, store=store)
        assert (got.step, got.interrupted, hook.calls) == (steps, False, steps // 2)
        assert pieces.of("eval/loss") == wanted


def test_an_evaluation_that_is_given_up_computes_no_more_batches():
    placed = []

    class Batches:
        def __iter__(self):
            for i in range(5):
                placed.append(i)
                yield {"x": _Data.rows(i)}

    evaluation = Eval(Batches(), every=1, metrics={"loss": _loss})
    result = _fit(_Data(), steps=1, hooks=[evaluation], stop=_Asked(times=3))
    assert (placed, result.step, result.interrupted) == ([0, 1, 2], 1, True)


def test_an_exception_of_a_hook_leaves_the_saves_that_were_made():
    class Interrupt:
        every = 5

        def __call__(self, trainer, state, step):
            raise KeyboardInterrupt

    store = _Memory()
    with pytest.raises(KeyboardInterrupt):
        _fit(_Data(), steps=9, store=store, save_every=2, hooks=[Interrupt()])
    assert sorted(store.steps) == [2, 4]
    assert store.waited
    assert _fit(_Data(), steps=9, store=store).step == 9


def _slow_loss(model, batch, *, key):
    """Takes some hundredths of a second, so that its result is not there when it is dispatched."""
    busy = jax.lax.fori_loop(0, 20, lambda _, x: jnp.sin(x @ x), jnp.full((300, 300), 0.1))
    total, count = _loss(model, batch, key=key)
    return total + 0.0 * busy.sum(), count


@pytest.mark.thorough
@pytest.mark.parametrize("save_every", [1, 5])
def test_a_loss_that_is_not_finite_ends_the_run_before_its_state_is_used(save_every):
    store, trainer = _Memory(), Trainer(optax.adam(1e-2), _slow_loss, max_skips=0)
    hook = _Sum(every=save_every)
    options = {"steps": 9, "store": store, "save_every": save_every, "hooks": [hook]}
    with pytest.raises(
        BadStep, match=r"must be finite, got loss=nan.*at step 4, first in batch.x.*look at that"
    ) as error:
        trainer.fit(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), _Data(bad=4), **options)
    assert error.value.step == 4
    np.testing.assert_array_equal(error.value.batch["x"], _Data.rows(4, bad=4))
    assert max(store.steps, default=0) <= 4
    assert hook.calls == 4 // save_every
    for items in store.steps.values():
        assert np.isfinite(items["params"]["kernel"]).all()


def test_data_that_ends_early_is_an_error_that_loses_nothing():
    store = _Memory()
    with pytest.raises(ValueError, match=r"must give a batch.*got 5 batches.*steps=9; repeat the"):
        _fit(_Data(end=5), steps=9, store=store)
    assert list(store.steps) == [5]
    with pytest.raises(ValueError, match=r"got 0 batches from step 0 on"):
        _fit([], steps=1)


def test_data_that_cannot_be_resumed_is_refused_when_there_is_a_store():
    with pytest.raises(
        ValueError, match=r"must have get_state.*got an iterator list_iterator; pass"
    ):
        _fit([{"x": np.ones((4, 3), "f4")}], steps=1, store=_Memory())


@pytest.mark.parametrize(
    "options, message",
    [
        ({"steps": 0}, r"must be at least 1 update, got steps=0; write steps="),
        ({"steps": 1, "save_every": 0, "store": _Memory()}, r"at least 1.*save_every=0; write"),
        (
            {"steps": 1, "save_every": 1},
            r"needs a store, got save_every=1, store=None; pass store=",
        ),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        _fit(_Data(), **options)


def test_a_run_is_not_resumed_with_other_hooks():
    store = _Memory()
    _fit(_Data(), steps=2, store=store, hooks=[_Sum(1)])
    with pytest.raises(ValueError, match=r"must be resumed with.*got hooks \[\] where \['_Sum'\]"):
        _fit(_Data(), steps=4, store=store)


@pytest.mark.thorough
def test_the_time_of_a_run_is_accounted_for():
    store = _Memory()
    sink = _Lines()
    first = _fit(_Data(), steps=4, store=store, hooks=[_Sum(2)], sinks=[sink])
    told = sink.of("seconds/step")
    assert [step for step, _ in told] == [2, 4, 4]
    assert 0 < told[0][1] < told[-1][1] <= first.seconds["step"]
    used = {"init", "compile", "step", "hooks", "save"}
    assert set(first.seconds) == used | {"skipped", "data", "draw", "stall"}
    assert all(first.seconds[name] > 0 for name in ("init", "compile", "step", "hooks", "save"))
    saved = store.steps[4]["hooks"]["clock"]
    assert all(saved[name] <= seconds for name, seconds in first.seconds.items())
    second = _fit(_Data(), steps=6, store=store, hooks=[_Sum(2)])
    for name in ("init", "compile", "step", "hooks", "save"):
        assert 0 < saved[name] < second.seconds[name]  # one account over both


class _Open:
    """A hook and a sink that count how often they are closed."""

    every, closed = 2, 0

    def __call__(self, trainer, state, step):
        if self.closed is None:
            raise KeyboardInterrupt
        return {}

    def write(self, step, scalars):
        pass

    def close(self):
        self.closed = (self.closed or 0) + 1


@pytest.mark.thorough
def test_what_is_open_is_closed_however_a_run_ends():
    hook, sink, store = _Open(), _Open(), _Memory()
    _fit(_Data(), steps=3, hooks=[hook], sinks=[sink])
    assert (hook.closed, sink.closed) == (1, 1)
    hook.closed = None
    with pytest.raises(KeyboardInterrupt):
        _fit(_Data(), steps=3, hooks=[hook], sinks=[sink], store=store)
    assert (hook.closed, sink.closed, store.waited) == (1, 2, True)


@pytest.mark.parametrize("how", ["config", pytest.param("context", marks=pytest.mark.thorough)])
def test_a_guard_against_transfers_lets_a_run_and_its_steps_pass(how):
    held_out = [{"x": _Data.rows(20)}]
    hooks = [Watch("**", every=2), Eval(held_out, every=2, metrics={"loss": _loss})]
    context = jax.transfer_guard("disallow") if how == "context" else contextlib.nullcontext()
    model, trainer = nnx.Linear(3, 2, rngs=nnx.Rngs(0)), Trainer(optax.adam(1e-2), _loss)
    if how == "config":
        jax.config.update("jax_transfer_guard", "disallow")
    try:
        with context:
            result = trainer.fit(model, _Data(), steps=3, hooks=hooks)
            state, metrics = trainer.step(trainer.init(model), {"x": _Data.rows(0)})
            assert metrics.read()["loss"] > 0
            assert trainer.program(model, {"x": _Data.rows(0)}).accumulate == 1
    finally:
        jax.config.update("jax_transfer_guard", None)
    assert (result.step, int(state.step)) == (3, 1)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every entry of the contract, changed and unchanged, in a store with `peek` and in one without."""

import functools
import json
import logging
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import OrbaxStore, Precision, Trainer, make_mesh
from dovetail_train.resume.contract import RULES

STEPS = 3


class Batches:
    """Random batches that depend on their number alone."""

    def __init__(self):
        self.i = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.i += 1
        return {"x": rows(self.i - 1)}

    def get_state(self):
        return {"i": self.i}

    def set_state(self, state):
        self.i = state["i"]


def rows(i):
    return np.random.default_rng(i).normal(size=(4, 3)).astype("f4")


class Memory:
    """A store of save, restore and wait alone: copies of arrays, and JSON texts of objects."""

    def __init__(self, steps=None):
        self.steps = {step: dict(items) for step, items in (steps or {}).items()}
        self.asked = []

    def save(self, step, **items):
        self.steps[step] = {
            name: json.dumps(item.get_state()) if hasattr(item, "get_state") else _held(item)
            for name, item in items.items()
        }

    def restore(self, **targets):
        self.asked.append(sorted(targets))
        if not self.steps:
            return None
        step = max(self.steps)
        items = {name: self.steps[step][name] for name in targets}
        for name, target in targets.items():
            if hasattr(target, "set_state"):
                target.set_state(json.loads(items[name]))
        return step, {n: x if isinstance(x, str) else _held(x) for n, x in items.items()}

    def wait(self): ...


def _held(tree):
    return jax.tree.map(lambda x: x + 0, tree)


class Below:
    """A guard that refuses losses above a factor of the first one."""

    def __init__(self, factor=100.0, size=2):
        self.factor, self.size = factor, size

    def begin(self):
        return {"first": jnp.zeros((self.size,), jnp.float32)}

    def judge(self, history, *, grad_norm, loss):
        first = history["first"][0]
        taken = (first == 0) | (loss < self.factor * first)
        return taken, {"first": jnp.where(history["first"] == 0, loss, history["first"])}


class Counting(Batches):
    """A hook with a state."""

    every = 1

    def __call__(self, trainer, state, step):
        return {}


def squared(model, batch, *, key, z=1.0):
    return {"fit": (z * (model(batch["x"]) ** 2).sum(), jnp.float32(4))}


def absolute(model, batch, *, key, z=1.0):
    return {"fit": (z * jnp.abs(model(batch["x"])).sum(), jnp.float32(4))}


def linear(*, outputs=2, bias=True):
    return nnx.Linear(3, outputs, use_bias=bias, rngs=nnx.Rngs(0))


BASE = {
    "tx": optax.chain(optax.clip_by_global_norm(5.0), optax.adamw(1e-2)),
    "loss": functools.partial(squared, z=0.5),
    "weights": {"fit": 1.0},
    "guard": Below(),
    "ema": 0.9,
    "seed": 3,
}
OPTIONS = {"model": linear, "hooks": (), "steps": STEPS, "save_every": 2}


def fit(store, *, resume="exact", **changed):
    settings = {**BASE, **OPTIONS, **changed}
    options = {name: settings.pop(name) for name in OPTIONS}
    trainer = Trainer(settings.pop("tx"), settings.pop("loss"), **settings)
    model = options.pop("model")()
    return trainer.fit(model, Batches(), store=store, resume=resume, **options)


def _adamw(rate, **options):
    return optax.chain(optax.clip_by_global_norm(5.0), optax.adamw(rate, **options))


def _schedule(peak):
    return optax.cosine_decay_schedule(peak, 50)


CHANGES = {
    "steps": ({"steps": STEPS}, []),
    "saves": ({"save_every": 1}, []),
    "reports": ({"hooks": []}, []),
    "hardware": ({"mesh": make_mesh(data=1, devices=jax.devices()[:1])}, []),
    "rates": ({"flops": 9.0, "peak_flops": 1e3}, []),
    "optimizer": ({"tx": _adamw(5e-3)}, ["optimizer scale.step_size -0.01 is now -0.005"]),
    "guard": ({"guard": Below(factor=9.0)}, ["guard Below.factor 100.0 is now 9.0"]),
    "loss": ({"loss": functools.partial(squared, z=0.25)}, ["loss squared.z 0.5 is now 0.25"]),
    "weights": ({"weights": {"fit": 2.0}}, ["weights.fit 1.0 is now 2.0"]),
    "accumulate": ({"accumulate": 2}, ["accumulate 1 is now 2"]),
    "precision": (
        {"precision": Precision(compute="bfloat16")},
        ["precision.compute 'float32' is now 'bfloat16'"],
    ),
    "ema": ({"ema": 0.99}, ["ema 0.9 is now 0.99"]),
    "max_skips": ({"max_skips": 4}, ["max_skips 10 is now 4"]),
    "average": ({"ema": None}, ["ema 0.9 is now None", "dropped ema"]),
    "guard history": ({"guard": None}, ["guard Below(100.0, 2) is now None", "dropped guard"]),
    "optimizer state": (
        {"tx": _adamw(_schedule(1e-2))},
        ["optimizer arrays none is now 1.2.count int32[]", f"made opt.1.2.count={STEPS}"],
    ),
    "fewer steps": (
        {"steps": STEPS - 1},
        [f"at least the {STEPS} updates", f"got steps={STEPS - 1}", f"pass steps={STEPS} or more"],
    ),
    "seed": ({"seed": 4}, ["resumed with the seed", "got seed=4 where 3", "pass the saved seed"]),
    "another optimizer": (
        {"tx": optax.lion(1e-2)},
        ["resumed with the optimizer", "scale_by_lion", "scale_by_adam", "another store"],
    ),
    "another loss": (
        {"loss": functools.partial(absolute, z=0.5)},
        ["resumed with the loss", "got loss=absolute where squared", "trainer.model(state)"],
    ),
    "trainable": (
        {"trainable": "kernel"},
        ["with the trainable", "bias frozen where bias trained", "pass the saved filter"],
    ),
    "model": (
        {"model": functools.partial(linear, outputs=1)},
        ["with the model", "kernel float32[3, 1] where", "kernel float32[3, 2]", "saved model"],
    ),
    "stateful hooks": (
        {"hooks": [Counting()]},
        ["resumed with the hooks", "got hooks ['Counting'] where []", "pass those hooks"],
    ),
}  # fmt: skip
# These have a test of their own, here or of the contract.
APART = {"after_update", "batch", "code", "versions"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A function from "orbax" or "memory" to a fresh copy of a store with the run of BASE."""
    directory, memory = tmp_path_factory.mktemp("saved") / "run", Memory()
    fit(OrbaxStore(directory))
    fit(memory)

    def copied(kind):
        if kind == "memory":
            return Memory(memory.steps)
        copy = tmp_path_factory.mktemp("copy") / "run"
        shutil.copytree(directory, copy)
        return OrbaxStore(copy)

    return copied


def _warnings(caplog):
    records = [r for r in caplog.records if r.name.startswith("dovetail_train")]
    return [r.getMessage() for r in records if r.levelno >= logging.WARNING]


def test_every_rule_of_the_contract_has_a_case():
    assert CHANGES.keys() | APART == {rule.entry for rule in RULES}


@pytest.mark.parametrize("kind", ["orbax", "memory"])
def test_an_unchanged_run_is_resumed_without_a_word(saved, kind, caplog):
    store = saved(kind)
    with caplog.at_level(logging.INFO):
        result = fit(store)
    assert (result.step, _warnings(caplog)) == (STEPS, [])
    assert f"has made its steps={STEPS} updates: nothing is left to train" in caplog.text


@pytest.mark.parametrize("kind", ["orbax", "memory"])
@pytest.mark.parametrize("rule", [r for r in RULES if r.entry in CHANGES], ids=lambda r: r.entry)
def test_a_change_has_the_verdict_of_its_rule(saved, kind, rule, caplog):
    changed, texts = CHANGES[rule.entry]
    if rule.verdict == "refused":
        with pytest.raises(ValueError, match=r"must be .*; pass") as error:
            fit(saved(kind), **changed)
        assert all(text in str(error.value) for text in texts), error.value
        return
    if rule.verdict == "converted":
        with pytest.raises(ValueError, match=r"must have the arrays that were saved, got") as error:
            fit(saved(kind), **changed)
        assert texts[0] in str(error.value)
        assert 'write fit(..., resume="convert") to keep' in str(error.value)
    mode = "convert" if rule.verdict == "converted" else "exact"
    result = fit(saved(kind), resume=mode, **changed)
    assert int(result.state.step) == STEPS
    lines = _warnings(caplog)
    assert len(lines) == {"free": 0, "logged": 1}.get(rule.verdict, len(lines))
    assert all(text in lines[-1] for text in texts), lines


def test_another_body_of_a_function_is_logged_and_so_are_other_versions(saved, caplog):
    store = saved("memory")
    items = store.steps[STEPS]
    description = json.loads(items["description"])
    description["loss"]["code"] = "0" * 16
    items["description"] = json.dumps(description)
    fit(store)
    assert "code of squared 00000000 is now" in _warnings(caplog)[0]
    caplog.clear()
    before, description["versions"]["jax"] = description["versions"]["jax"], "0.0.1"
    items["description"] = json.dumps(description)
    fit(store)
    (line,) = _warnings(caplog)
    assert f"versions.jax '0.0.1' is now '{before}'" in line
    assert "code of" not in line  # other versions may have other functions


@pytest.mark.parametrize("kind", ["orbax", "memory"])
def test_a_run_of_an_earlier_version_is_resumed_and_one_line_says_so(saved, kind, tmp_path, caplog):
    store = saved(kind)
    if kind == "memory":
        del store.steps[STEPS]["description"]
    else:
        shutil.rmtree(store._manager.directory / str(STEPS) / "description")
    assert fit(store, seed=9).step == STEPS
    (line,) = _warnings(caplog)
    assert "no setting was compared" in line


def test_arrays_are_read_once_and_nothing_is_read_before_a_refusal(saved):
    store = saved("memory")
    fit(store)
    assert store.asked == [["description"], ["data", "description", "hooks", "params", "train"]]
    store = saved("memory")
    with pytest.raises(ValueError, match="seed"):
        fit(store, seed=4)
    assert store.asked == [["description"]]


# Conversions, continued by hand with optax.


def _loss_by_hand(params, x):
    return 0.5 * ((x @ params["kernel"] + params["bias"]) ** 2).sum() / 4


def _continued(params, opt, tx, *, start, stop):
    after = []
    for i in range(start, stop):
        grads = jax.grad(_loss_by_hand)(params, rows(i))
        updates, opt = tx.update(grads, opt, params)
        params = optax.apply_updates(params, updates)
        after.append(params)
    return after


# float32 rounding of three updates of size 1e-2, in programs that XLA fuses differently.
ROUNDING = {"rtol": 1e-5, "atol": 1e-6}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["orbax", "memory"])
def test_a_schedule_takes_the_place_of_a_constant_at_the_restored_step(saved, kind):
    before = fit(saved(kind)).state
    tx = _adamw(_schedule(1e-2))
    clip, (adam, decay, _) = before.opt
    count = optax.ScaleByScheduleState(count=jnp.int32(STEPS))
    wanted = _continued(before.params, (clip, (adam, decay, count)), tx, start=STEPS, stop=6)[-1]
    got = fit(saved(kind), tx=tx, steps=6, resume="convert").state
    assert int(got.opt[1][2].count) == 6
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **ROUNDING), got.params, wanted)
    zero = optax.ScaleByScheduleState(count=jnp.int32(0))  # its own step 0 ends elsewhere
    other = _continued(before.params, (clip, (adam, decay, zero)), tx, start=STEPS, stop=6)[-1]
    assert not np.allclose(got.params["kernel"], other["kernel"], **ROUNDING)


def test_updates_that_were_skipped_do_not_move_a_new_counter():
    class Refusing(Below):
        def judge(self, history, *, grad_norm, loss):
            return history["first"][0] != 1, {"first": history["first"] + 1}

    store = Memory()
    before = fit(store, guard=Refusing()).state
    assert int(before.skips.total) == 1
    got = fit(store, guard=Refusing(), tx=_adamw(_schedule(1e-2)), resume="convert").state
    assert int(got.opt[1][2].count) == STEPS - 1 == int(got.opt[1][0].count)


@pytest.mark.costly("four runs over a store")
@pytest.mark.parametrize("kind", ["orbax", "memory"])
def test_an_average_that_is_added_begins_at_the_restored_parameters(tmp_path, kind):
    store = OrbaxStore(tmp_path) if kind == "orbax" else Memory()
    before = fit(store, ema=None).state
    got = fit(store, ema=0.75, resume="convert").state
    np.testing.assert_array_equal(got.ema["kernel"], before.params["kernel"])
    kernel = np.asarray(before.params["kernel"], np.float64)
    got = fit(store, ema=0.75, steps=5, resume="convert").state
    for params in _continued(before.params, before.opt, BASE["tx"], start=STEPS, stop=5):
        kernel = 0.75 * kernel + 0.25 * np.asarray(params["kernel"], np.float64)
    np.testing.assert_allclose(got.ema["kernel"], kernel, **ROUNDING)
    assert fit(store, ema=0.75, steps=5).step == 5


@pytest.mark.parametrize("kind", ["orbax", "memory"])
def test_a_guard_with_another_history_begins_anew(saved, kind):
    result = fit(saved(kind), guard=Below(size=5), resume="convert")
    np.testing.assert_array_equal(result.state.guard["first"], np.zeros(5))
    kept = fit(saved(kind), guard=Below(factor=9.0)).state.guard["first"]
    assert np.all(np.asarray(kept) > 0)


@pytest.mark.parametrize("kind", ["orbax", "memory"])
def test_a_hyperparameter_in_the_state_takes_its_new_value(tmp_path, kind, caplog):
    store = OrbaxStore(tmp_path) if kind == "orbax" else Memory()

    def injected(rate):
        return optax.inject_hyperparams(optax.adamw)(learning_rate=rate)

    before = fit(store, tx=injected(1e-2)).state
    got = fit(store, tx=injected(0.25)).state
    assert float(got.opt.hyperparams["learning_rate"]) == 0.25
    assert "learning_rate 0.01 is now 0.25" in caplog.text
    jax.tree.map(np.testing.assert_array_equal, got.opt.inner_state, before.opt.inner_state)
    caplog.clear()
    fit(store, tx=injected(1e-2))
    assert _warnings(caplog) == []


def test_a_moment_of_another_dtype_is_made_anew_and_named(saved, caplog):
    changed = {"tx": _adamw(1e-2, mu_dtype=jnp.bfloat16)}
    with pytest.raises(
        ValueError, match=r"1\.0\.mu\.bias float32.* is now 1\.0\.mu\.bias bfloat16"
    ):
        fit(saved("orbax"), **changed)
    got = fit(saved("orbax"), **changed, resume="convert").state.opt[1][0]
    assert (got.mu["bias"].dtype, float(jnp.abs(got.mu["bias"]).sum())) == (jnp.bfloat16, 0)
    assert float(jnp.abs(got.nu["bias"]).sum()) > 0
    assert "made opt.1.0.mu.bias, opt.1.0.mu.kernel" in caplog.text


def test_a_run_extended_by_steps_alone_is_the_run_that_was_long_from_the_start(saved):
    got, whole = fit(saved("orbax"), steps=6), fit(Memory(), steps=6)
    jax.tree.map(np.testing.assert_array_equal, got.state, whole.state)
    assert got.scalars["loss"] == whole.scalars["loss"]


def test_conversion_of_a_run_that_needs_none_changes_no_bit(saved, caplog):
    exact, converted = fit(saved("orbax")), fit(saved("orbax"), resume="convert")
    jax.tree.map(np.testing.assert_array_equal, exact.state, converted.state)
    assert _warnings(caplog) == []

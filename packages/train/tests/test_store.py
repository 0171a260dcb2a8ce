# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import builtins
import os
import random
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import SingleDeviceSharding

from dovetail_train import OrbaxStore, Trainer, read_jsonl
from dovetail_train.store import takes_metrics

STEPS = 30
PROGRAM = Path(__file__).parent / "programs" / "killed.py"


class _Counter:
    def __init__(self, i=0):
        self.i = i

    def get_state(self):
        return {"i": self.i}

    def set_state(self, state):
        self.i = state["i"]


def _targets(tree):
    here = SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), tree)


def test_what_is_restored_is_what_was_saved_bit_for_bit(tmp_path):
    rng = np.random.default_rng(0)
    tree = {
        "layers": {0: {"w": jnp.asarray(rng.normal(size=(3, 5)), jnp.bfloat16)}, 11: {}},
        "weak": jnp.asarray(2.0),
        "count": jnp.int32(7),
        "key": jax.random.key(3),
        "keys": jax.random.split(jax.random.key(4, impl="rbg"), 3),
    }
    counter = _Counter(5)
    store = OrbaxStore(tmp_path)
    assert store.restore(params=_targets(tree)) is None
    store.save(3, params=tree, data=counter)
    counter.i = 9  # after save returned, the object may go on
    store.wait()
    fresh = _Counter()
    step, items = OrbaxStore(tmp_path).restore(params=_targets(tree), data=fresh)
    assert (step, fresh.i, items["data"]) == (3, 5, fresh)
    assert jax.tree.structure(items["params"]) == jax.tree.structure(tree)
    for got, want in zip(jax.tree.leaves(items["params"]), jax.tree.leaves(tree), strict=True):
        assert got.dtype == want.dtype
        if jnp.issubdtype(got.dtype, jax.dtypes.prng_key):
            got, want = jax.random.key_data(got), jax.random.key_data(want)
        np.testing.assert_array_equal(got, want)


def test_the_newest_step_is_restored_and_the_oldest_go(tmp_path):
    store = OrbaxStore(tmp_path, keep=2)
    for step in (1, 2, 3):
        store.save(step, params={"w": jnp.full(2, float(step))})
    store.wait()
    step, items = store.restore(params=_targets({"w": jnp.zeros(2)}))
    assert (step, float(items["params"]["w"][0])) == (3, 3.0)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.isdigit()) == ["2", "3"]


def test_without_orbax_the_message_says_what_to_type(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("orbax"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ModuleNotFoundError, match=r"needs orbax.*got no mod.*pip install dovetail-"
    ):
        OrbaxStore(tmp_path)


class _WithMetrics:
    """A store that keeps the metrics alone."""

    def __init__(self):
        self.metrics = {}

    def save(self, step, *, metrics=None, **items):
        self.metrics[step] = metrics

    def restore(self, **targets):
        return None

    def wait(self):
        pass


class _Measured:
    """A hook with scalars, some of them not finite."""

    def __init__(self, every, **scalars):
        self.every, self._scalars = every, scalars

    def __call__(self, trainer, state, step):
        return {"step": float(step), **self._scalars}


@pytest.mark.thorough
def test_a_store_that_declares_metrics_receives_the_finite_ones_of_that_step():
    nan, inf = float("nan"), float("inf")
    hooks = [_Measured(2, a=1.0, b=nan), _Measured(3, b=0.5, c=-inf)]
    store = _WithMetrics()

    def loss(model, batch, *, key):
        return (model(batch["x"]) ** 2).sum(), jnp.float32(2)

    class Data(_Counter):
        def __iter__(self):
            return self

        def __next__(self):
            self.i += 1
            return {"x": np.ones((2, 3), np.float32)}

    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    trainer = Trainer(optax.sgd(0.1), loss)
    trainer.fit(model, Data(), steps=7, store=store, save_every=1, hooks=hooks)
    assert store.metrics == {
        1: {},
        2: {"step": 2.0, "a": 1.0},
        3: {"step": 3.0, "b": 0.5},
        4: {"step": 4.0, "a": 1.0},
        5: {},
        6: {"step": 6.0, "a": 1.0, "b": 0.5},
        7: {},
    }


def test_a_store_is_asked_whether_it_takes_metrics(tmp_path):
    assert takes_metrics(_WithMetrics())
    assert not takes_metrics(OrbaxStore(tmp_path))


def _losses(directory):
    lines = read_jsonl(directory / "metrics.jsonl")
    return [line["loss"] for line in lines if "loss" in line]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """(digest of the final state, losses) of a run in this process."""
    program, directory = runpy.run_path(str(PROGRAM)), tmp_path_factory.mktemp("unbroken")
    result = program["run"](directory, steps=STEPS)
    return program["digest"](result.state), _losses(directory)


def _run_and_kill(directory, *, kills, seed):
    """Starts the run over and over, kills it at random points, and lets the last one finish."""
    chance, out = random.Random(seed), directory / "digest"
    command = [sys.executable, PROGRAM, directory, str(STEPS), out]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    for _ in range(kills):
        with subprocess.Popen([*command, "gated"], **pipes) as child:
            for _ in range(chance.randrange(1, 24 // kills)):  # too few to come to the end
                assert child.stdout.readline()
                child.stdin.write("\n")
                child.stdin.flush()
            time.sleep(chance.random() * 0.05)  # in the next step, a save or a rename
            child.kill()
        assert child.returncode == -signal.SIGKILL
    subprocess.run(command, check=True)
    return out.read_text()


@pytest.mark.thorough("it kills processes")
@pytest.mark.capability("a killed run resumes bit for bit")
@pytest.mark.parametrize(
    "kills, seed",
    [pytest.param(1, 0), *[pytest.param(5, s, marks=pytest.mark.slow) for s in (1, 2, 3)]],
)
def test_a_killed_run_ends_with_the_bits_of_the_unbroken_one(tmp_path, unbroken, kills, seed):
    state, losses = unbroken
    directory = tmp_path / "killed"
    directory.mkdir()
    assert _run_and_kill(directory, kills=kills, seed=seed) == state
    assert _losses(directory) == losses
    # Every kill came after a step: the last start is the generation after all of them.
    assert read_jsonl(directory / "metrics.jsonl")[-1]["generation"] == kills


@pytest.mark.thorough
def test_sigterm_through_stop_saves_and_the_resumed_run_has_the_same_bits(tmp_path, unbroken):
    state, losses = unbroken
    program = runpy.run_path(str(PROGRAM))
    asked = []

    class Terminate:
        every = 7

        def __call__(self, trainer, state, step):
            os.kill(os.getpid(), signal.SIGTERM)
            return {}

    before = signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    try:
        first = program["run"](
            tmp_path / "cut", steps=STEPS, hooks=[Terminate()], stop=lambda step: bool(asked),
            save_every=100,
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (first.step, first.interrupted) == (7, True)
    second = program["run"](tmp_path / "cut", steps=STEPS)
    assert (second.step, second.interrupted) == (STEPS, False)
    assert program["digest"](second.state) == state
    lines = read_jsonl(tmp_path / "cut" / "metrics.jsonl")
    assert [line["loss"] for line in lines if "loss" in line] == losses
    assert second.seconds["compile"] > first.seconds["compile"] > 0  # one account over both


@pytest.mark.thorough("programs on several devices")
@pytest.mark.capability("a run resumes on another mesh")
def test_a_run_that_is_moved_to_other_meshes_goes_on(on_eight_devices, tmp_path):
    found = on_eight_devices("moved.py", str(tmp_path / "store"))
    assert found["same_batches"]
    assert found["pieces"] == [1, 2, 2]
    # On one device nothing changed; then float32 sums are of another order.
    assert found["moved"][:3] == found["losses"][:3]
    np.testing.assert_allclose(found["moved"], found["losses"], rtol=2e-5)


@pytest.mark.parametrize("name", ["lr[1e-3]", "a*", "b?"])
def test_a_path_that_orbax_reads_as_a_pattern_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"none of the characters \*, \? and \[, .*; rename"):
        OrbaxStore(tmp_path / name)
    assert list(tmp_path.iterdir()) == []

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import Trace, Trainer, Watch
from dovetail_train.loop.watch import _measured


class _Net(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.Linear(3, n, rngs=rngs) for n in (3, 5)])

    def __call__(self, x):
        return self.layers[1](self.layers[0](x))


def _loss(model, batch, *, key):
    return (model(batch["x"]) ** 2).sum(), jnp.float32(4)


BATCHES = [{"x": np.ones((4, 3), "f4")}] * 9


class _Lines(dict):
    def write(self, step, scalars):
        self.setdefault(step, {}).update(scalars)


def _fit(*, steps=9, sinks=(), hooks=()):
    trainer = Trainer(optax.sgd(1e-2), _loss)
    return trainer.fit(_Net(), BATCHES, steps=steps, sinks=sinks, hooks=hooks)


def test_what_a_pattern_matches_is_measured():
    trainer = Trainer(optax.sgd(1e-2), _loss)
    model = _Net()
    model.layers[1].kernel[...] = model.layers[1].kernel[...].at[1, 2].set(-9.0)
    found = Watch("layers.1.*", every=3)(trainer, trainer.init(model), 3)
    kernel = np.asarray(model.layers[1].kernel[...], np.float64)
    assert found["watch/layers.1.kernel/norm"] == pytest.approx(np.linalg.norm(kernel), rel=1e-6)
    assert found["watch/layers.1.kernel/rms"] == pytest.approx((kernel**2).mean() ** 0.5, rel=1e-6)
    assert found["watch/layers.1.kernel/max"] == 9.0
    assert found["watch/layers.1.bias/norm"] == 0.0
    assert len(found) == 6


def test_a_nan_among_many_numbers_is_the_largest():
    """XLA's parallel maximum on CPUs drops NaN; small arrays are reduced without it."""
    found = _measured({"w": jnp.ones((512, 1024)).at[300, 700].set(jnp.nan)})["w"]
    assert all(np.isnan(value) for value in found.values())
    assert _measured({"w": jnp.full((512, 1024), -3.0)})["w"]["max"] == 3.0


@pytest.mark.thorough
def test_it_is_a_hook():
    lines = _Lines()
    _fit(sinks=[lines], hooks=[Watch("**.kernel", every=4)])
    assert [n for n in lines if "watch/layers.0.kernel/rms" in lines[n]] == [4, 8]


@pytest.mark.thorough
@pytest.mark.parametrize("start, end", [(1, 9), (4, 9), (8, 9)])
def test_a_trace_is_written_once_and_ends_with_the_run(tmp_path, monkeypatch, start, end):
    begun, begin = [], jax.profiler.start_trace

    def count(path, **options):
        begun.append(begin(path, **options))

    monkeypatch.setattr(jax.profiler, "start_trace", count)
    trace = Trace(tmp_path / "trace", start=start, steps=2)
    _fit(steps=end, hooks=[trace])
    (run,) = (tmp_path / "trace" / "plugins" / "profile").iterdir()
    assert run.name == f"step{start + start % 2}"  # a multiple of steps
    assert {"process0.xplane.pb"} <= {path.name for path in run.iterdir()}
    assert len(begun) == 1
    with pytest.raises(RuntimeError, match=r"[Nn]o profile"):
        jax.profiler.stop_trace()


@pytest.mark.parametrize("processes, traced", [("first", {0}), ("all", {0, 1})])
def test_each_process_has_files_of_its_own(tmp_path, monkeypatch, processes, traced):
    """Two processes one after the other, on one machine, as far as the files go."""
    trainer = Trainer(optax.sgd(1e-2), _loss)
    state = trainer.init(_Net())
    for process in (0, 1):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        trace = Trace(tmp_path, start=1, steps=1, processes=processes)
        trace(trainer, state, 3)
        jnp.ones(3).block_until_ready()
        trace.close()
    files = {path.name for path in (tmp_path / "plugins" / "profile" / "step3").glob("*.xplane.pb")}
    assert files == {f"process{process}.xplane.pb" for process in traced}


def _called_in_a_trace():
    """No program of JAX has it among its lines."""


@pytest.mark.parametrize("python", [False, True])
def test_calls_of_python_are_traced_if_they_are_wanted(tmp_path, python):
    trainer = Trainer(optax.sgd(1e-2), _loss)
    trace = Trace(tmp_path, start=1, steps=1, python=python)
    trace(trainer, trainer.init(_Net()), 1)
    _called_in_a_trace()
    trace.close()
    (file,) = tmp_path.rglob("*.xplane.pb")
    assert (b"_called_in_a_trace" in file.read_bytes()) == python


def test_what_means_nothing_is_refused():
    trainer = Trainer(optax.sgd(1e-2), _loss)
    with pytest.raises(
        ValueError, match=r"match a parameter, got 'head.*', which matches none of 4"
    ):
        Watch("head.*", every=1)(trainer, trainer.init(_Net()), 1)
    with pytest.raises(ValueError, match=r"at least 1, got every=0; write Watch\('x', every=100"):
        Watch("x", every=0)
    with pytest.raises(ValueError, match=r"at least 1.*got start=0, steps=5; write Trace\("):
        Trace("x", start=0, steps=5)
    unchecked = getattr(Trace.__init__, "__wrapped__", Trace.__init__)
    with pytest.raises(ValueError, match=r"'first' or 'all', got 'each'; write processes='all'"):
        unchecked(Trace.__new__(Trace), "x", start=1, steps=5, processes="each")

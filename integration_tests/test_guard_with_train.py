# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer with the guard of dovetail-optim: spikes, resumed runs, scan, eight devices."""

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import forced_devices
import warm_start
from dovetail_optim import Guard
from dovetail_train import OrbaxStore, StepGuard

PROGRAM = Path(__file__).parent / "programs" / "guarded.py"
guarded = SimpleNamespace(**runpy.run_path(str(PROGRAM)))


def test_the_guard_meets_the_protocol_of_the_trainer():
    assert isinstance(Guard(), StepGuard)


@pytest.fixture(scope="module")
def unbroken():
    hook = guarded.Digests()
    lines, result = guarded.run(hooks=[hook])
    return lines, result, hook.of


def test_injected_spikes_are_refused_and_nothing_else(unbroken):
    lines, result, _ = unbroken
    assert lines.skipped == guarded.BAD
    assert int(result.state.skips.total) == len(guarded.BAD)
    # The trainer refuses the NaN by itself: the guard counts spikes alone.
    assert int(result.state.guard.skipped) == len(guarded.SPIKES)
    losses = [lines.losses[i] for i in range(guarded.STEPS) if i not in guarded.BAD]
    assert np.mean(losses[-5:]) < 0.5 * losses[0]


def test_a_refused_step_leaves_every_bit_of_parameters_and_optimizer(unbroken):
    _, _, digests = unbroken
    # Hooks run from the first update on, so step 0 has no digest before it.
    unchanged = [i for i in range(1, guarded.STEPS) if digests[i] == digests[i + 1]]
    assert unchanged == guarded.BAD


# Before a fault, between a NaN and a spike, and between two spikes in a row.
@pytest.mark.parametrize("cut", [10, 23, 34])
def test_a_resumed_run_continues_the_history(tmp_path, unbroken, cut):
    store = OrbaxStore(tmp_path / "checkpoints")
    first, _ = guarded.run(store=store, stop=lambda step: step == cut)
    second, result = guarded.run(store=OrbaxStore(tmp_path / "checkpoints"))
    lines, whole, _ = unbroken
    assert first.skipped + second.skipped == guarded.BAD
    assert first.losses | second.losses == pytest.approx(lines.losses, rel=0, abs=0, nan_ok=True)
    for name in ("params", "opt", "guard", "skips"):
        jax.tree.map(
            np.testing.assert_array_equal, getattr(result.state, name), getattr(whole.state, name)
        )


def test_steps_in_a_scan_refuse_the_same(unbroken):
    trainer = guarded.trainer()
    data = guarded.Batches()
    batches = [next(data) for _ in range(guarded.STEPS)]
    state = trainer.init(guarded.perceptron())
    program = trainer.program(guarded.perceptron(), batches[0])
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *batches)
    with jax.set_mesh(trainer.mesh):
        state, metrics = jax.jit(lambda s, b: jax.lax.scan(program.fn, s, b))(state, stacked)
    assert np.flatnonzero(metrics.scalars["skipped"]).tolist() == guarded.BAD
    _, whole, _ = unbroken
    # Forty steps of Adam, whose sums a scan may fuse otherwise.
    for name in ("log_norms", "losses"):
        np.testing.assert_allclose(
            getattr(state.guard, name), getattr(whole.state.guard, name), rtol=1e-3, atol=1e-3
        )


@pytest.mark.thorough
def test_eight_devices_refuse_the_same():
    done = warm_start.run([PROGRAM], env=forced_devices.environment(8))
    assert done.returncode == 0, done.stderr[-3000:]
    runs = json.loads(done.stdout)
    assert runs["eight"]["skipped"] == runs["one"]["skipped"] == guarded.BAD
    # Sums of float32 in another order, over forty steps.
    np.testing.assert_allclose(runs["eight"]["losses"], runs["one"]["losses"], rtol=1e-3)

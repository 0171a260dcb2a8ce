# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Post-training losses in the trainer: microbatches, chunks, meshes, processes, kills."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import forced_devices
from dovetail_train import Trainer

PROGRAMS = Path(__file__).parent / "programs"
sys.path.append(str(PROGRAMS))

import tune_killed  # noqa: E402
import tune_meshes  # noqa: E402
from tune_losses import LOSSES, batch  # noqa: E402

# A difference of two means is no sum over rows: microbatches give the mean of theirs.
OF_PARTS = {"apo_zero_unpaired one/2", "apo_zero_unpaired one/4"}
WHOLE = [name for name, case in LOSSES.items() if case.whole]


def _lines_of(process):
    output, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]
    return output


def _start(*arguments, devices, program="tune_meshes.py", **environment):
    return subprocess.Popen(
        [sys.executable, str(PROGRAMS / program), *map(str, arguments)],
        env=forced_devices.environment(devices, **environment),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _read(file):
    """Terms by "LOSS MESH"."""
    steps = {}
    with np.load(file) as arrays:
        for key in arrays:
            at, _, term = key.partition(":")
            steps.setdefault(at, {})[term] = arrays[key]
    return steps


def _alike(got, want, at):
    assert got.keys() == want.keys(), at
    assert np.isfinite(want["loss"]), at
    assert want["grad_norm"] > 1e-4, at  # the loss says something
    for term, value in want.items():
        if at in OF_PARTS and term.endswith("/margin"):
            continue
        if term == "change":
            # Sums of 48 rows of float32 in another order, and parameters rounded once: at most 4
            # in size, so 2**-22.
            atol = 2e-5 * np.abs(value).max() + 5e-7
            np.testing.assert_allclose(got[term], value, rtol=0, atol=atol, err_msg=at)
        else:
            # The same sums; margins and gaps are differences of numbers of size 10.
            np.testing.assert_allclose(
                got[term], value, rtol=2e-5, atol=2e-5, err_msg=f"{at} {term}"
            )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "losses, meshes",
    [
        (["dpo"], ["fsdp x tensor"]),
        pytest.param([*LOSSES], [*tune_meshes.MESHES], marks=pytest.mark.slow),
    ],
    ids=["dpo", "all"],
)
def test_a_step_does_not_depend_on_microbatches_chunks_or_devices(losses, meshes, tmp_path):
    file = tmp_path / "steps.npz"
    _lines_of(_start(file, ",".join(losses), ",".join(meshes), devices=8, cached=True))
    steps = _read(file)
    assert len(steps) == len(losses) * (3 + len(meshes))
    for name in losses:
        for split in ("one/2", "one/4", *meshes):
            _alike(steps[f"{name} {split}"], steps[f"{name} one/1"], f"{name} {split}")


@pytest.mark.slow
def test_two_processes_with_their_own_rows_step_as_one(tmp_path):
    file = tmp_path / "steps.npz"
    with socket.socket() as held:
        # Nobody else gets the port meanwhile; the coordinator may, since it sets the option too.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        both = [_start(file, ",".join(LOSSES), me, 2, port, devices=2) for me in range(2)]
        for process in both:
            _lines_of(process)
    steps = _read(file)
    for name, case in LOSSES.items():
        _alike(steps[f"{name} processes"], tune_meshes.step(case, None, batch()), name)


@pytest.mark.parametrize("name", WHOLE)
def test_microbatches_of_a_loss_over_the_whole_batch_are_refused(name):
    with pytest.raises(ValueError, match=r"so accumulate must be 1, got accumulate=2; pass acc"):
        Trainer(optax.sgd(1.0), LOSSES[name].loss(chunks=1), accumulate=2)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["dpo_twin", "dpo_adapters"])
def test_the_reference_keeps_its_bits_and_the_rest_is_trained(name):
    case = LOSSES[name]
    model = case.model(None)
    trainer = Trainer(optax.adam(1e-2), case.loss(), trainable=case.trainable)
    state = trainer.init(model)
    first = None
    for _ in range(3):
        state, metrics = trainer.step(state, batch())
        first = first or metrics.read()
    assert metrics.read()["loss"] < first["loss"] - 1e-3
    before, after = (dict(nnx.to_flat_state(nnx.state(m))) for m in (model, trainer.model(state)))
    trained = {path for path, _ in nnx.to_flat_state(nnx.state(model, case.trainable))}
    assert 0 < len(trained) < len(before)
    for path, value in before.items():
        same = (np.asarray(value[...]) == np.asarray(after[path][...])).all()
        assert same == (path not in trained), path


@pytest.mark.thorough
def test_a_killed_run_with_a_stored_reference_resumes_bit_for_bit(tmp_path):
    steps = 5
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    digest, scored = tune_killed.run(whole, steps=steps)
    assert scored == tune_killed.ROWS  # once, though the run reads some of them again
    # At this optimization level the first process has the programs of this one.
    process = _start(killed, steps, devices=1, program="tune_killed.py", optimize=True)
    for step in range(1, 4):
        assert process.stdout.readline() == f"{step}\n", process.stderr.read()[-3000:]
        if step < 3:
            process.stdin.write("\n")
            process.stdin.flush()
    process.send_signal(signal.SIGKILL)  # step 2 is saved, or is being saved
    process.communicate()
    assert tune_killed.run(killed, steps=steps) == (digest, 0)
    logged, wanted = (
        {line["step"]: line["loss"] for line in map(json.loads, text) if "loss" in line}
        for text in ((run / "metrics.jsonl").read_text().splitlines() for run in (killed, whole))
    )
    assert logged == wanted
    assert len({*wanted.values()}) == steps
    assert jax.process_count() == 1

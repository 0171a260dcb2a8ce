# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail train` on real text: killed, interrupted, damaged, moved, and given bad input.

A run that survived any of it must equal the run that nothing happened to, bit for bit.
"""

import contextlib
import io
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
import pytest

import forced_devices
from dovetail_stack import cli

pytestmark = pytest.mark.thorough

TEXT = Path(sysconfig.get_paths()["stdlib"]) / "json"
GATED = str(Path(__file__).parent / "programs" / "gated.py")
STEPS = 40
TINY = (
    *("--pattern", "*.py", "--held-out", "0.2", "--vocab-size", "400", "--steps", str(STEPS)),
    *("--embed", "32", "--depth", "1", "--heads", "2", "--kv-heads", "1", "--mlp", "64"),
    *("--length", "64", "--global-batch", "8", "--save-every", "5"),
)


# A full disk is stood in for by a limit on the size of a file, set in the process that writes.
LIMITED = """
import resource, runpy, sys
limit = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
sys.dont_write_bytecode = True  # it would be cut, too
runpy.run_module("dovetail_stack", run_name="__main__")
"""


def _start(out, *options, program=("-m", "dovetail_stack"), env=None):
    new = [] if (out / "run.json").exists() else ["pretrain", "--text", str(TEXT), *TINY]
    return subprocess.Popen(
        [sys.executable, *program, "train", *new, "--out", str(out), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **(env or {})},
    )


def _train(out, *options, **process):
    """(exit code, all output) of the command in a process of its own."""
    running = _start(out, *options, **process)
    output, errors = running.communicate()
    return running.returncode, output + errors


def _main(*line):
    """The same in this process, where JAX is imported: for a launch that nothing happens to."""
    shown = io.StringIO()
    log = logging.StreamHandler(shown)  # the command adds none beside those of pytest
    logging.getLogger().addHandler(log)
    try:
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            return cli.main([str(word) for word in line]), shown.getvalue()
    finally:
        logging.getLogger().removeHandler(log)


def _new(out, text, *options):
    """The words of a new run."""
    return "train", "pretrain", "--text", text, *TINY, "--out", out, *options


def _lines(out):
    """Whole lines of metrics.jsonl, of every generation."""
    path = out / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _losses(out):
    """{step: loss} after checking that every generation that ran a step found the same loss."""
    losses = {}
    for line in _lines(out):
        if "loss" in line:
            assert losses.setdefault(line["step"], line["loss"]) == line["loss"]
    return losses


def _at_gate(out, *steps):
    """A run that stands at the first of these steps; a line of input lets it go to the next."""
    process = _start(out, program=(GATED, ",".join(map(str, steps))))
    for line in process.stdout:
        if line == f"logged {steps[0]}\n":
            return process
    raise AssertionError(process.communicate()[1])


def _go_on(process):
    process.stdin.write("\n")
    process.stdin.flush()


def _weights(out):
    return (out / "hf" / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken") / "run"
    code, output = _main(*_new(out, TEXT))
    assert code == 0, output
    return out


def test_it_learns_and_exports_what_transformers_reads(unbroken):
    losses = _losses(unbroken)
    assert sorted(losses) == list(range(STEPS))
    assert losses[STEPS - 1] < losses[0] - 0.5
    files = {path.name for path in (unbroken / "hf").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files


@pytest.mark.thorough("it kills processes")
@pytest.mark.capability("dovetail train, killed at random points, ends with the same bits")
def test_killed_at_random_points_it_ends_as_if_nothing_had_happened(unbroken, tmp_path):
    out, chance = tmp_path / "run", random.Random(0)
    for _ in range(2):
        saved = max((int(name) for name in _entries(out) if name.isdigit()), default=0)
        step = saved + chance.randint(1, 6)
        process = _at_gate(out, step, step + 5)  # past a save, and before the end in both
        _go_on(process)
        time.sleep(chance.uniform(0, 0.3))  # anywhere in a step, a save or a hash
        process.kill()
        process.communicate()
    code, output = _main("train", "--out", out)
    assert code == 0, output
    assert len({line["generation"] for line in _lines(out)}) == 3
    events = [json.loads(line) for line in (out / "launches.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["start"] * 3 + ["end"]
    assert events[-1]["outcome"] == "finished"
    assert _losses(out) == _losses(unbroken)
    assert _weights(out) == _weights(unbroken)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_asked_to_stop_it_saves_says_how_to_resume_and_resumes(unbroken, tmp_path, number):
    out = tmp_path / "run"
    process = _at_gate(out, 7)
    process.send_signal(number)
    _, errors = process.communicate("\n")
    assert process.returncode == 130
    assert f"Saved. Resume it with: dovetail train --out {out}" in errors
    done = len(_losses(out))
    assert (out / "checkpoints" / str(done)).is_dir()
    code, output = _main("train", "--out", out)
    assert code == 0, output
    assert _losses(out) == _losses(unbroken)
    assert _weights(out) == _weights(unbroken)


def _entries(out):
    return {path.name for path in (out / "checkpoints").glob("*") if path.is_dir()}


def _largest(directory):
    files = [path for path in directory.rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


@pytest.mark.thorough("several runs of the command")
@pytest.mark.capability("dovetail train finds a flipped bit and restores the step before")
def test_a_flipped_bit_is_found_and_the_step_before_is_restored(unbroken, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(unbroken, out)
    shutil.rmtree(out / "hf")
    damaged = _largest(out / "checkpoints" / str(STEPS))
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 16
    damaged.write_bytes(content)
    code, output = _main("train", "--out", out)
    assert code == 0, output
    assert f"step {STEPS} is damaged: " in output
    assert damaged.name in output
    assert "trying the step before it" in output
    assert {line["step"] for line in _lines(out) if line["generation"] == 1} == set(
        range(STEPS - 5, STEPS + 1)
    )
    assert _losses(out) == _losses(unbroken)
    assert _weights(out) == _weights(unbroken)


def test_a_disk_that_fills_during_a_save_loses_no_earlier_step(unbroken, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(unbroken, out)
    shutil.rmtree(out / "hf")
    shutil.rmtree(out / "checkpoints" / str(STEPS))
    limit = _largest(out / "checkpoints").stat().st_size // 2

    code, output = _train(out, program=("-c", LIMITED, str(limit)))
    assert code == 1
    assert f"step {STEPS} must be written to {out / 'checkpoints'} whole" in output
    assert "free space" in output
    assert "Traceback" not in output
    # A write still under way when the first one failed may leave its part behind: no step's name.
    assert {"30", "35"} <= _entries(out)
    assert str(STEPS) not in _entries(out)
    code, output = _main("train", "--out", out)
    assert code == 0, output
    assert all(name.isdigit() for name in _entries(out))
    assert _weights(out) == _weights(unbroken)


# Slow, as is the next: test_cpu_meshes.py runs the command on a mesh, test_parallel_training.py and
# the trainer's suite compare the losses of meshes.
@pytest.mark.slow
@pytest.mark.parametrize("mesh", [["--data", "2", "--fsdp", "4"], ["--data", "8"], ["--fsdp", "8"]])
def test_eight_devices_give_the_losses_of_one(unbroken, tmp_path, mesh):
    out = tmp_path / "run"
    code, output = _train(out, *mesh, env=forced_devices.environment(8))
    assert code == 0, output
    expected, got = _losses(unbroken), _losses(out)
    assert sorted(got) == sorted(expected)
    # Sums in another order: float32 rounding, which 40 steps of training may amplify.
    np.testing.assert_allclose(
        [got[step] for step in sorted(got)],
        [expected[step] for step in sorted(expected)],
        rtol=2e-4,
    )


@pytest.mark.capability("dovetail train resumes on other devices")
@pytest.mark.slow
def test_a_run_goes_on_with_other_devices(unbroken, tmp_path):
    out = tmp_path / "run"
    process = _at_gate(out, STEPS // 2)
    process.send_signal(signal.SIGTERM)
    process.communicate("\n")
    env = forced_devices.environment(4)
    code, output = _train(out, "--fsdp", "4", env=env)
    assert code == 0, output
    expected = _losses(unbroken)
    second = {
        line["step"]: line["loss"]
        for line in _lines(out)
        if line["generation"] == 1 and "loss" in line
    }
    assert len(second) > 5
    for step, loss in second.items():
        assert loss == pytest.approx(expected[step], rel=2e-4)  # as above


@pytest.fixture
def files(tmp_path):
    directory = tmp_path / "text"
    directory.mkdir()
    for i in range(4):
        (directory / f"{i}.py").write_text(f"x = {i}\n" * 50)
    return directory


def _refused(*line):
    code, output = _main(*line)
    assert code in (1, 2, 3), output
    assert "Traceback" not in output
    return output


def test_a_folder_without_text_is_refused(tmp_path):
    output = _refused(*_new(tmp_path / "run", tmp_path))
    assert "matches --pattern '*.py', got 0 files of text" in output
    assert not (tmp_path / "run").exists()


def test_what_holds_no_text_is_skipped_and_changes_nothing(files, tmp_path):
    short = ("--steps", "6")
    code, output = _main(*_new(tmp_path / "plain", files, *short))
    assert code == 0, output
    (files / "4.py").write_bytes(b"caf\xe9 = 1\n")
    (files / "5.py").write_bytes(b"\0")
    code, output = _main(*_new(tmp_path / "run", files, *short))
    assert code == 0, output
    told = "4 files of text, 2 skipped (1 not UTF-8, 1 binary) below"
    assert output.count(told) == 1
    assert _losses(tmp_path / "run") == _losses(tmp_path / "plain")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["skipped"] == [
        "4.py",
        "5.py",
    ]


def test_other_settings_for_a_run_are_refused_and_named(unbroken):
    before, other = _weights(unbroken), ("--depth", "3", "--vocab-size", "500")
    code, output = _main("train", "pretrain", *other, "--out", unbroken)
    assert code == 2
    assert "--depth 3 (the run has 1)" in output
    assert "--vocab-size 500 (the run has 400)" in output
    assert _weights(unbroken) == before


def test_a_finished_run_is_extended_by_steps_and_exported_again(unbroken, tmp_path):
    out, more = tmp_path / "run", STEPS + 3
    shutil.copytree(unbroken, out)
    code, output = _main("train", "--out", out, "--steps", STEPS - 1)
    assert code == 2
    assert f"at least the {STEPS} updates" in output
    assert f"got --steps {STEPS - 1}; pass --steps {STEPS} or more" in output
    assert json.loads((out / "run.json").read_text()) == json.loads(
        (unbroken / "run.json").read_text()
    )
    line = ("--learning-rate", "0.005", "--ema", "0.5", "--resume", "convert")
    code, output = _main("train", "pretrain", "--steps", more, *line, "--out", out)
    assert code == 0, output
    assert f"follow a schedule over {more} steps" in output
    assert f"from step {STEPS} on the run has other settings: " in output
    assert f"the state of step {STEPS} was converted (ema None is now 0.5)" in output
    before, after = _losses(unbroken), _losses(out)
    assert sorted(after) == list(range(more))
    assert {step: after[step] for step in before} == before
    assert _weights(out) != _weights(unbroken)
    stored = json.loads((out / "run.json").read_text())["settings"]
    assert (stored["duration"]["steps"], stored["training"]["ema"]) == (more, 0.5)
    event = json.loads((out / "launches.jsonl").read_text().splitlines()[-2])
    assert event["changes"] == {
        "steps": [STEPS, more],
        "ema": [0.0, 0.5],
        "learning_rate": [0.01, 0.005],
    }


def test_a_checkpoint_of_another_model_is_refused(unbroken, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(unbroken, out)
    run = json.loads((out / "run.json").read_text())
    run["settings"]["shape"]["mlp"] = 96
    (out / "run.json").write_text(json.dumps(run))
    output = _refused("train", "--out", out)
    assert "mlp" in output
    assert "[32, 96]" in output.replace("(", "[").replace(")", "]")
    assert _entries(out) == {"30", "35", "40"}


def test_an_id_that_the_model_does_not_have_is_refused(unbroken, tmp_path):
    from dovetail_data import Pretrained, train_bpe

    model = tmp_path / "model"
    shutil.copytree(unbroken / "hf", model)
    train_bpe([path.read_text() for path in TEXT.glob("*.py")], model, vocab_size=500)
    word = Pretrained(model).decode([499])
    code, output = _main("generate", model, "--prompt", word)
    assert code == 3
    assert f"have ids below the model's 400 rows, got id 499 ({word!r}): leave it out" in output


def test_generate_continues_the_prompt(unbroken):
    line = ["generate", str(unbroken), "--prompt", "def read_", "--max-tokens", "20"]
    other = subprocess.run(
        [sys.executable, "-m", "dovetail_stack", *line], capture_output=True, text=True, check=True
    )
    with contextlib.redirect_stdout(io.StringIO()) as text:
        assert cli.main(line) == 0
    assert text.getvalue() == other.stdout
    assert other.stdout.startswith("def read_")
    assert len(other.stdout) > len("def read_") + 10


def test_more_devices_than_there_are_is_refused(files, tmp_path):
    output = _refused(*_new(tmp_path / "run", files, "--fsdp", "4"))
    assert (
        "--fsdp 4 needs 4 devices and there are 1: lower one of them, or ask with --estimate"
        in output
    )


def test_a_plan_needs_no_devices_and_starts_nothing(files, tmp_path):
    out = tmp_path / "run"
    options = ("--fsdp", "4", "--tensor", "2", "--remat", "all", "--estimate", "NVIDIA H200")
    line = _new(out, files, *options)
    code, output = _main(*line)
    assert code == 0, output
    assert "8 x NVIDIA H200, fsdp=4, tensor=2" in output
    assert "fits" in output
    code, output = _main(*line, "--json")
    assert code == 0, output
    assert json.loads(output[output.index("{\n") :])["devices"] == 8
    assert not out.exists()

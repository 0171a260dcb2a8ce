# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail train continue` and `distil`, from a pretrained run: killed, resumed and refused.

What nothing happened to runs in this process; what is killed runs in one of its own. Both must end
with the same bits.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from dovetail_models import load
from dovetail_stack import cli

pytestmark = pytest.mark.thorough

TEXT = Path(sysconfig.get_paths()["stdlib"]) / "json"
GATED = Path(__file__).parent / "programs" / "gated.py"
STEPS = 16
RUN = (
    *("--text", str(TEXT), "--pattern", "*.py", "--held-out", "0.2", "--steps", str(STEPS)),
    *("--length", "32", "--global-batch", "4", "--save-every", "3"),
)
SHAPE = ("--embed", "16", "--depth", "1", "--heads", "2", "--kv-heads", "1", "--mlp", "24")
LORA = ("--lora-rank", "2", "--learning-rate", "0.01", "--precision", "bfloat16")


def _main(*line):
    return cli.main(["train", *map(str, line)])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A finished run of pretrain."""
    out = tmp_path_factory.mktemp("source") / "run"
    assert _main("pretrain", "--out", out, *RUN, *SHAPE, "--vocab-size", "320") == 0
    return out


@pytest.fixture(scope="module", params=["continue", "distil"])
def recipe(request, source):
    """(recipe, the options of a new run of it)."""
    options = {
        "continue": ("--model", source, *LORA),
        "distil": ("--teacher", source, *SHAPE, "--accumulate", "2"),
    }
    return request.param, (*RUN, *options[request.param])


@pytest.fixture(scope="module")
def unbroken(recipe, tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken") / "run"
    assert _main(recipe[0], "--out", out, *recipe[1]) == 0
    return out


def _lines(out):
    path = out / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _losses(out):
    """{step: (generation's first, last)} must be one value: repeated steps give the same bits."""
    losses = {}
    for line in _lines(out):
        if "loss" in line:
            assert losses.setdefault(line["step"], line["loss"]) == line["loss"]
    return losses


def _weights(out):
    return (out / "hf" / "model.safetensors").read_bytes()


@pytest.mark.thorough("it kills processes")
@pytest.mark.capability("continued and distilled runs, killed and resumed")
@pytest.mark.parametrize(
    "recipe", ["distil", pytest.param("continue", marks=pytest.mark.slow)], indirect=True
)
def test_killed_and_resumed_without_its_recipe_it_ends_with_the_same_bits(
    recipe, unbroken, tmp_path
):
    out = tmp_path / "run"
    wanted = random.Random(recipe[0]).randint(5, 8)
    line = [sys.executable, GATED, wanted, "train", recipe[0], "--out", out, *recipe[1]]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(list(map(str, line)), **pipes, env=os.environ) as process:
        assert f"logged {wanted}\n" in process.stdout
        process.kill()
    assert process.returncode == -signal.SIGKILL
    assert _main("--out", out) == 0
    assert len({x["generation"] for x in _lines(out)}) == 2
    assert sorted(_losses(out)) == list(range(STEPS))
    assert _losses(out) == _losses(unbroken)
    assert _weights(out) == _weights(unbroken)


def test_it_exports_what_it_trained_with_the_tokenizer_of_the_source(recipe, unbroken, source):
    before, after = load(source / "hf"), load(unbroken / "hf")
    assert after.config.vocab_size == before.config.vocab_size == 320
    names = {path.name for path in (unbroken / "hf").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    tokenizers = [path / "hf" / "tokenizer.json" for path in (source, unbroken)]
    assert tokenizers[0].read_bytes() == tokenizers[1].read_bytes()
    embeddings = [model.embed.embedding.get_value() for model in (before, after)]
    # Adapters leave the embeddings as they were; a student begins with its own.
    assert np.array_equal(*embeddings) == (recipe[0] == "continue")
    if recipe[0] == "distil":
        last = [line for line in _lines(unbroken) if "loss" in line][-1]
        expected = 0.5 * last["loss/kl"] + 0.5 * last["loss/nll"]
        assert last["loss"] == pytest.approx(expected, rel=1e-6)


def test_runs_lists_it_with_its_source(unbroken, source, recipe, capsys):
    assert cli.main(["runs", "list", str(unbroken), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"].values()
    assert (row["recipe"], row["state"]) == (recipe[0], "finished")
    assert (row["step"], row["steps"]) == (STEPS, STEPS)
    assert 0 < row["evaluations"]["eval/bits_per_byte"][1] < 8
    assert cli.main(["runs", "compare", str(source), str(unbroken)]) == 0
    assert "last evaluation: bits per byte" in capsys.readouterr().out


def _refused(capsys, *line):
    assert _main(*line) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


def test_a_run_of_another_recipe_is_refused(unbroken, recipe, capsys):
    error = _refused(capsys, "pretrain", "--out", unbroken)
    assert f"holds a run of the recipe {recipe[0]}, got pretrain: leave the recipe out" in error


def test_a_model_that_is_none_or_quantized_is_refused(tmp_path, source, capsys):
    line = ("continue", "--text", TEXT, "--pattern", "*.py")
    error = _refused(capsys, *line, "--out", tmp_path / "a", "--model", tmp_path / "none")
    assert "a model is a directory with config.json, or a run" in error
    small = tmp_path / "small"
    shutil.copytree(source / "hf", small)
    (small / "quantization.json").write_text("{}")
    error = _refused(capsys, *line, "--out", tmp_path / "b", "--model", small)
    assert "continue needs the weights that were not quantized yet" in error


def test_a_changed_teacher_is_refused_when_the_run_resumes(unbroken, recipe, source, tmp_path):
    out, moved = tmp_path / "run", tmp_path / "moved"
    shutil.copytree(unbroken, out)
    shutil.copytree(source / "hf", moved)
    weights = bytearray((moved / "model.safetensors").read_bytes())
    weights[-6] ^= 64
    (moved / "model.safetensors").write_bytes(weights)
    content = (out / "run.json").read_text()
    (out / "run.json").write_text(content.replace(json.dumps(str(source)), json.dumps(str(moved))))
    with pytest.raises(ValueError, match=r"that are not trained must be .* got others in 1 of"):
        _main("--out", out, "--debug")
    assert recipe[0] in content

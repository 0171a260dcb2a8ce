# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `dovetail models`, as a user types it."""

import json
import os
import signal

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from dovetail_models import bert, init, llama, load, load_encoder, save
from dovetail_stack import cli
from dovetail_stack.commands.models import parse_mesh

CONFIG = llama(vocab_size=40, embed=12, depth=3, heads=4, kv_heads=2, head_dim=6, mlp=20)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "llama"
    save(init(CONFIG, seed=0), path)
    (path / "tokenizer.json").write_text("{}")
    return path


def test_inspect(directory, capsys):
    assert cli.main(["models", "inspect", str(directory), "--mesh", "fsdp=4"]) == 0
    text = capsys.readouterr().out
    assert "layers.{0..2}.attn.q.kernel" in text
    assert "(fsdp, -)" in text
    assert cli.main(["models", "inspect", str(directory), "--json", "--length", "8"]) == 0
    assert json.loads(capsys.readouterr().out)["cost"]["length"] == 8


@pytest.mark.parametrize(
    "text, message",
    [
        ("fdsp=8", "got 'fdsp=8' in 'fdsp=8' .did you mean fsdp"),
        ("fsdp=8,fsdp=2", "each once with its size, as in fsdp=8,tensor=2; got 'fsdp=2'"),
        ("fsdp", "axes among context, data, expert, fsdp, tensor"),
        ("fsdp=0", "got 'fsdp=0'"),
        ("", "got ''"),
    ],
)
def test_a_mesh_that_is_none_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_mesh(text)


def test_convert_casts_an_encoder(tmp_path):
    config = bert(vocab_size=40, embed=12, depth=1, heads=2, mlp=20, max_length=16)
    save(init(config, seed=0), tmp_path / "bert")
    line = ["models", "convert", str(tmp_path / "bert"), "--out", str(tmp_path / "out")]
    assert cli.main([*line, "--dtype", "bfloat16"]) == 0
    model = load_encoder(tmp_path / "out")
    assert model.config == config
    assert model.layers[0].attn.q.kernel.dtype == jnp.bfloat16


@pytest.mark.thorough
def test_convert_casts_and_cuts_into_files(directory, tmp_path, capsys):
    out = tmp_path / "deep" / "out"
    line = ["models", "convert", str(directory), "--out", str(out), "--dtype", "bfloat16"]
    assert cli.main([*line, "--file-bytes", "2000", "--json"]) == 0
    printed = capsys.readouterr()
    assert "100%" in printed.err
    assert cli.main(["models", "inspect", str(out), "--json"]) == 0
    assert json.loads(printed.out) == json.loads(capsys.readouterr().out)
    assert (out / "tokenizer.json").read_text() == "{}"
    files = sorted(out.glob("*.safetensors"))
    assert len(files) > 3
    tensors = {n: t for f in files for n, t in safetensors.numpy.load_file(f).items()}
    plain = safetensors.numpy.load_file(directory / "model.safetensors")
    assert tensors.keys() == plain.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, plain[name].astype(jnp.bfloat16))


def test_convert_refuses_what_is_there(directory, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    assert cli.main(["models", "convert", str(directory), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "--out must be a new directory" in error
    assert "exists: name another" in error
    line = [
        "models",
        "convert",
        str(directory),
        "--out",
        str(tmp_path / "new"),
        "--file-bytes",
        "0",
    ]
    assert cli.main(line) == 2
    assert "at least one byte, got --file-bytes 0" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@pytest.mark.thorough
def test_an_interrupted_convert_leaves_nothing(directory, tmp_path, capsys, monkeypatch):
    sync, synced = os.fsync, []

    # Between two files a handle may be open that no `with` holds yet: interrupt inside one.
    def interrupt(handle):
        sync(handle)
        synced.append(handle)
        if len(synced) == 3:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(os, "fsync", interrupt)
    # A file for each of 30 tensors, each synced.
    line = [
        "models",
        "convert",
        str(directory),
        "--out",
        str(tmp_path / "out"),
        "--file-bytes",
        "1",
    ]
    assert cli.main(line) == 130
    assert "interrupted" in capsys.readouterr().err
    assert len(synced) == 3
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_diff(directory, tmp_path, capsys):
    assert cli.main(["models", "diff", str(directory), str(directory)]) == 0
    assert capsys.readouterr().out == "30 parameters with equal values\n"
    model = load(directory)
    model.norm.scale.set_value(model.norm.scale[...] + 0.5)
    save(model, tmp_path / "b")
    assert cli.main(["models", "diff", str(directory), str(tmp_path / "b")]) == 1
    assert "norm.scale: 0.5 (0.5)" in capsys.readouterr().out
    assert cli.main(["models", "diff", str(directory), str(tmp_path / "b"), "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert (content["equal"], content["same"]) == (False, 29)
    assert [(v["path"], v["largest"]) for v in content["values"]] == [("norm.scale", 0.5)]


def test_an_error_of_diff_says_what_is_wrong(directory, tmp_path, capsys):
    assert cli.main(["models", "diff", str(directory), str(tmp_path)]) == 2
    assert "a model is a directory with config.json" in capsys.readouterr().err


def test_an_orbax_checkpoint_is_told_apart(tmp_path, capsys):
    (tmp_path / "_CHECKPOINT_METADATA").write_text("{}")
    assert cli.main(["models", "inspect", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "an Orbax checkpoint: restore it with the library that wrote it" in error
    assert "dovetail models inspect --help" in error
    assert "Traceback" not in error


def test_a_damaged_file_is_one_message(directory, tmp_path, capsys):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((directory / name).read_bytes()[:-10])
    assert cli.main(["models", "inspect", str(tmp_path)]) == 3  # config.json is cut too
    (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
    assert cli.main(["models", "inspect", str(tmp_path)]) == 3
    error = capsys.readouterr().err
    assert str(tmp_path) in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "line, message",
    [
        ([], "ACTION"),
        (["inspct", "x"], "inspect, convert, diff, got inspct: did you mean inspect?"),
        (["inspect", "x", "--jsn"], "did you mean --json?"),
        (
            ["convert", "x", "--out", "y", "--dtype", "int8"],
            "float32, bfloat16, float16, got --dtype int8",
        ),
        (["diff", "x"], "got x: type dovetail models diff A B"),
    ],
)
def test_usage(line, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["models", *line])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err

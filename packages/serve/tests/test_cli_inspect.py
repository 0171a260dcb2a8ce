# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`inspect`: all of the manifest, and no array."""

import json
import re

import jax
import numpy as np
import pytest

import dovetail_serve
from dovetail_serve import HostFunction, Platform, Tensor, export


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    """A bundle with all that `inspect` shows."""
    path = tmp_path_factory.mktemp("rich") / "bundle"

    def fn(p, *, input_ids):
        return {"logits": p["table"][input_ids].sum(1) * p["scale"].astype("float32")}

    generator = np.random.default_rng(0)
    export(
        fn,
        {
            "table": generator.normal(size=(11, 3)).astype("float32"),
            "scale": generator.integers(1, 5, size=(3,)).astype("int8"),
            "unused": jax.random.key(3),
        },
        inputs={"input_ids": Tensor(("batch", 7), "int32")},
        example={"input_ids": generator.integers(0, 11, size=(2, 7)).astype("int32")},
        platforms=(
            Platform(
                name="cpu",
                weights="bfloat16",
                compiler_options={"xla_cpu_enable_fast_math": False},
                layouts={"table": (1, 0)},
            ),
            Platform(name="cuda", device_kind="NVIDIA H100 80GB HBM3"),
        ),
        batch_sizes=(2, 16),
        before=HostFunction("tokenize", {"text": Tensor(("batch",), "bytes")}),
        after=HostFunction("labels", {"label": Tensor(("batch", 1), "bytes")}),
        assets={"vocabulary.txt": b"a b c"},
        provenance={"checkpoint": "sha256:" + "5" * 64, "note": "trained on Tuesday " * 9},
    ).save(path)
    return str(path)


@pytest.mark.thorough
def test_inspect_shows_the_whole_manifest(command, rich):
    code, out, err = command("inspect", rich)
    assert (code, err) == (0, "")
    assert all(len(line) <= 80 for line in out.splitlines()[1:])
    text = re.sub(r"\s+", " ", out)
    for shown in (
        f"{rich} sha256:",
        f"producer dovetail-serve {dovetail_serve.__version__}, jax ",
        f"checkpoint sha256:{'5' * 64} ",
        f"note {'trained on Tuesday ' * 9}inputs",
        "inputs input_ids int32[batch, 7] outputs logits float32[batch, 3] ",
        "host function before: tokenize text bytes[batch] ",
        "host function after: labels label bytes[batch, 1] ",
        "programs rows 2, 16 any number yes ",
        "cpu weights bfloat16, xla_cpu_enable_fast_math=False, layout table: (1, 0) ",
        "cuda for NVIDIA H100 80GB HBM3 ",
        "float32 33 elements in 1 array int8 3 elements in 1 array ",
        "key<threefry2x32> 2 elements in 1 array ",
        "files assets/vocabulary.txt 5 bytes ",
    ):
        assert shown in text


def test_inspect_as_json(command, rich):
    code, out, _ = command("inspect", "--json", rich)
    shown = json.loads(out)
    assert code == 0
    assert shown["digest"].startswith("sha256:")
    assert shown["inputs"] == {"input_ids": {"shape": ["batch", 7], "dtype": "int32"}}
    assert shown["before"]["name"] == "tokenize"
    assert shown["batch_sizes"] == [2, 16]
    assert shown["weights"]["float32"] == {"arrays": 1, "elements": 33}
    assert shown["files"]["assets/vocabulary.txt"] == 5
    assert shown["bytes"] == sum(shown["files"].values())
    assert shown["platforms"][0]["layouts"] == {"table": [1, 0]}
    assert shown["provenance"]["checkpoint"] == "sha256:" + "5" * 64


def test_inspect_without_a_batch_axis(command, tmp_path):
    with jax.enable_x64(True):
        export(
            lambda p, *, x: {"y": x * 2},
            {},
            inputs={"x": Tensor((3,), "float64")},
            example={"x": np.arange(3.0)},
            platforms=("cpu",),
        ).save(tmp_path / "1")
    _, out, _ = command("inspect", str(tmp_path / "1"))
    text = re.sub(r"\s+", " ", out)
    for shown in ("types 64 bits ", "rows no batch axis ", "weights none files "):
        assert shown in text


def test_inspect_prints_no_control_characters(command, tmp_path):
    hostile = "\x1b[2J\nfiles\r\x07\u202e"
    path = tmp_path / hostile / "1"
    export(
        lambda p, *, x: {"y": x + p[hostile]},
        {hostile: np.arange(3, dtype="float32")},
        inputs={"x": Tensor(("batch", 3), "float32")},
        example={"x": np.arange(6, dtype="float32").reshape(2, 3)},
        platforms=(
            Platform(name="cpu", layouts={"*": (0,)}),
            Platform(name="cuda", device_kind=hostile),
        ),
        batch_sizes=(2,),
        provenance={hostile: hostile, "note": "two\nlines"},
    ).save(path)
    for line in (["inspect"], ["inspect", "--json"], ["verify", "--files"]):
        code, out, err = command(*line, str(path))
        assert (code, err) == (0, "")
        assert out.replace("\n", "").isprintable()
    _, out, _ = command("inspect", str(path))
    assert [line for line in out.splitlines() if line.startswith("files")] == ["files"]
    assert "␛[2J" in out
    assert "note          two lines" in out


def test_inspect_reads_no_array(command, damaged, tmp_path):
    assert command("inspect", damaged(tmp_path / "bad"))[0] == 0
    code, _, err = command("inspect", "absent")
    assert code == 2
    assert "a bundle must have a manifest.json, and 'absent' has none" in err

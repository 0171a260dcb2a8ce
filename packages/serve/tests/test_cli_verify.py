# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`verify`: a report of each bundle, and the example on this device."""

import dataclasses
import json
import re

import numpy as np
import pytest

from dovetail_serve import HostFunction, Tensor, export


@pytest.mark.thorough
def test_verify_reports_each_bundle(command):
    code, out, err = command("verify", "repo/mlp/1", "repo/mlp/2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    # Three programs, weights, example, manifest and checksums; two kernels, one input, one output.
    assert lines[0].startswith("repo/mlp/1: 7 files with 4 arrays, ")
    assert re.fullmatch(r"  sha256:[0-9a-f]{64}", lines[1])
    assert lines[2] == "  example on cpu, stored on cpu"
    assert re.fullmatch(r"    y: difference \d\.\de[+-]\d\d, tolerance 1\.0e-04", lines[3])
    assert lines[4].startswith("repo/mlp/2: ")
    assert all(len(line) <= 80 for line in lines)


def test_verify_of_files_leaves_the_example_out(command):
    code, out, _ = command("verify", "--files", "repo/mlp/1")
    assert code == 0
    assert "example" not in out


def test_verify_as_json(command, here):
    code, out, err = command("verify", "--json", "repo/mlp/1")
    assert (code, err) == (0, "")
    (report,) = json.loads(out)["bundles"]
    size = sum(file.stat().st_size for file in here.glob("repo/mlp/1/**/*") if file.is_file())
    assert report["bytes"] == size
    assert (report["path"], report["files"], report["arrays"]) == ("repo/mlp/1", 7, 4)
    compared = report["example"]["outputs"]["y"]
    assert 0 <= compared["difference"] <= compared["tolerance"] == 1e-4


@pytest.mark.thorough
def test_verify_goes_on_after_a_damaged_bundle(command, damaged, tmp_path):
    path = damaged(tmp_path / "bad")
    code, out, err = command("verify", "absent", path, "repo/mlp/1")
    assert code == 3
    assert out.startswith("repo/mlp/1: ")
    first, second = err.splitlines()
    assert first.startswith("error: a bundle must have a manifest.json, and 'absent' has none")
    assert "is damaged in weights.safetensors: array 'layers.1.kernel'" in second
    code, out, _ = command("verify", "--json", path, "repo/mlp/1")
    assert code == 3
    reports = json.loads(out)["bundles"]
    assert "is damaged in weights.safetensors" in reports[0]["error"]
    assert reports[1]["path"] == "repo/mlp/1"


def test_verify_of_nothing_fails(command):
    assert command("verify", "absent")[0] == 2
    with pytest.raises(FileNotFoundError, match="absent"):
        command("verify", "--debug", "absent")


@pytest.mark.thorough
def test_verify_runs_the_example(command, tmp_path):
    bundle = export(
        lambda p, *, x: {"y": x @ p["w"]},
        {"w": np.random.default_rng(0).normal(size=(5, 2)).astype("float32")},
        inputs={"x": Tensor(("batch", 5), "float32")},
        example={"x": np.random.default_rng(1).normal(size=(3, 5)).astype("float32")},
        before=HostFunction("tokenize", {"text": Tensor(("batch",), "bytes")}),
        platforms=("cpu",),
        batch_sizes=(4,),
    )
    bundle.save(tmp_path / "1")
    assert command("verify", str(tmp_path / "1"))[0] == 0
    inputs, outputs = bundle.golden
    other = dataclasses.replace(bundle, golden=(inputs, {"y": np.asarray(outputs["y"]) + 0.5}))
    other.save(tmp_path / "2")
    assert command("verify", "--files", str(tmp_path / "2"))[0] == 0
    code, out, err = command("verify", str(tmp_path / "2"))
    assert (code, out) == (3, "\n" if out else "")
    assert "error: output 'y' of the example must be within 1.0e-04" in err


def test_a_bundle_of_another_platform_is_refused_without_words_of_python(command, tmp_path):
    export(
        lambda p, *, x: {"y": x @ p["w"]},
        {"w": np.random.default_rng(0).normal(size=(5, 2)).astype("float32")},
        inputs={"x": Tensor(("batch", 5), "float32")},
        example={"x": np.random.default_rng(1).normal(size=(3, 5)).astype("float32")},
        platforms=("tpu",),
        batch_sizes=(1,),
    ).save(tmp_path / "1")
    code, _, err = command("verify", str(tmp_path / "1"))
    assert code == 3
    assert "'cpu', and has tpu; export it for cpu too, or load it on devices of tpu\n" in err
    code, _, err = command("verify", str(tmp_path))
    assert code == 2
    assert "has none; give the directory of a bundle, such as repo/mlp/1\n" in err

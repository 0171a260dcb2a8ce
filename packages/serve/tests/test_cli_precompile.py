# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`precompile`: programs in the cache of the user."""

import json
import os
import shutil

import pytest


@pytest.mark.thorough
def test_precompile_keeps_programs(command, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, out, err = command("precompile", "repo/mlp/1", "--json")
    assert code == 0
    assert err.startswith("compiling repo/mlp/1")
    shown = json.loads(out)
    assert [program["rows"] for program in shown["programs"]] == [1, 4]
    for program in shown["programs"]:
        assert os.stat(os.path.join(shown["sidecar"], program["file"])).st_size == program["bytes"]


@pytest.mark.thorough
def test_precompile_prints_no_control_characters(command, here, tmp_path, monkeypatch):
    path = tmp_path / "\x1b[2J\n" / "1"
    shutil.copytree(here / "repo/mlp/1", path)
    (tmp_path / "\x1b[1m").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "\x1b[1m"))
    code, out, err = command("precompile", str(path))
    assert code == 0
    assert out.replace("\n", "").isprintable()
    assert err.removesuffix("\n").isprintable()


def test_precompile_refuses_a_damaged_bundle(command, damaged, tmp_path):
    code, _, err = command("precompile", damaged(tmp_path / "bad"))
    assert code == 3
    assert "is damaged in weights.safetensors" in err

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import gc
import shutil

import numpy as np
import pytest

from dovetail_checkpoint import Store
from dovetail_checkpoint.export import export_safetensors
from dovetail_checkpoint.verdict import verdicts

# Orbax leaves tasks behind when a load fails.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:.*was never awaited:RuntimeWarning"),
]


@pytest.fixture(autouse=True)
def collect_what_orbax_left():
    """Collects those tasks here, where their warnings are ignored, and not in a later test."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    root = tmp_path_factory.mktemp("run") / "run"
    rng = np.random.default_rng(0)
    with Store(root) as store:
        for step in (4, 11):
            store.save(step, model={"w": rng.normal(size=(30, 7)).astype(np.float32)})
    export_safetensors(root / "4", root / "hf")
    return root


@pytest.fixture
def run(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


def flip(path):
    data = bytearray(path.read_bytes())
    data[-9] ^= 2
    path.write_bytes(data)


def test_a_run_has_a_verdict_for_each_step_newest_first(run):
    flip(run / "11" / "model" / "_METADATA")
    told = []
    damaged, good = verdicts(run, progress=lambda *x: told.append(x))
    assert (damaged.path, good.path) == (run / "11", run / "4")
    assert [problem.where for problem in damaged.problems] == ["model/_METADATA"]
    assert str(damaged).startswith(f"{run}/11: damaged\n  model/_METADATA: ")
    assert (good.verified, good.problems, str(good)) == (True, (), f"{run}/4: verified")
    sizes = [
        sum(x.stat().st_size for x in (run / step).rglob("*") if x.is_file())
        for step in ("11", "4")
    ]
    assert told == [(0, sum(sizes)), (sizes[0], sum(sizes)), (sum(sizes), sum(sizes))]


def test_one_step_and_safetensors(run):
    (verdict,) = verdicts(run / "4", progress=None)
    assert (verdict.path, verdict.verified) == (run / "4", True)
    (verdict,) = verdicts(run / "hf", progress=None)
    assert verdict.verified
    flip(run / "hf" / "model.safetensors")
    (verdict,) = verdicts(run / "hf", progress=None)
    assert not verdict.verified
    assert "model.safetensors: holds other bits" in str(verdict)


def test_what_has_no_proof_is_told(run, tmp_path):
    from safetensors.numpy import save_file

    save_file({"w": np.ones(3)}, tmp_path / "x.safetensors")
    (verdict,) = verdicts(tmp_path / "x.safetensors", progress=None)
    assert str(verdict) == f"{tmp_path}/x.safetensors: readable, not verified"


def test_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must be a committed step, got path=.*; give the dir"):
        verdicts(tmp_path, progress=None)

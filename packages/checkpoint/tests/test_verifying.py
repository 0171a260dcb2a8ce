# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import gc
import hashlib
import shutil

import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
import pytest
from safetensors.numpy import save_file

from dovetail_checkpoint import DamageError, Store, export_safetensors, verified_digest, verify
from dovetail_checkpoint.proof import checksums

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


def values(step):
    rng = np.random.default_rng(step)
    return {name: rng.normal(size=(300, 7)).astype(np.float32) for name in ("w", "v")}


@pytest.fixture(scope="module")
def original(tmp_path_factory, position):
    root = tmp_path_factory.mktemp("run") / "run"
    with Store(root) as store:
        for step in (4, 11):
            store.save(step, metrics={"loss": 0.75}, model=values(step), data=position(17))
    export_safetensors(root / "4", root / "hf", item="model")
    return root


@pytest.fixture
def run(original, tmp_path):
    return shutil.copytree(original, tmp_path / "run")


def flip(path):
    data = bytearray(path.read_bytes())
    data[-9] ^= 2
    path.write_bytes(data)


@pytest.mark.thorough
def test_a_run_is_checked_step_by_step_newest_first(run):
    flip(run / "11" / "model" / "_METADATA")
    told = []
    report = verify(run, progress=lambda *x: told.append(x))
    damaged, good = report.steps
    assert not report.ok
    assert (damaged.path, damaged.step, damaged.verified) == (run / "11", 11, False)
    assert "model/_METADATA" in [problem.where for problem in damaged.problems]
    assert str(damaged).startswith("step 11 is damaged: model/_METADATA: sha256 is ")
    assert (good.step, str(good)) == (4, "step 4 is verified")
    sizes = [x.stat().st_size for step in ("11", "4") for x in files(run / step)]
    assert (report.files, report.bytes) == (len(sizes), sum(sizes))
    total = 2 * sum(sizes)
    assert (told[0], told[-1]) == ((0, total), (total, total))
    assert told == sorted(told)


def files(directory):
    return [path for path in directory.rglob("*") if path.is_file()]


@pytest.mark.thorough
def test_all_damaged_leaves_are_named(run):
    harmed = {"model/v", "model/w"}
    for name in ("v", "w"):
        bits = values(4)[name].tobytes()
        (data,) = (path for path in files(run / "4" / "model") if bits in path.read_bytes())
        content = data.read_bytes()
        at = content.index(bits)
        data.write_bytes(content[:at] + b"!" + content[at + 1 :])
        harmed.add(str(data.relative_to(run / "4")))
    (found,) = verify(run / "4").steps
    assert sorted(problem.where for problem in found.problems) == sorted(harmed)


@pytest.mark.thorough
def test_states_and_metrics_are_checked(run):
    (run / "11" / "SHA256SUMS").unlink()
    for file, where in (("data/data.json", "data"), ("metrics/metrics", "metrics")):
        path = run / "11" / file
        whole = path.read_text()
        path.write_text(whole.replace("7", "8"))
        (found,) = verify(run / "11").steps
        assert [problem.where for problem in found.problems] == [where]
        path.write_text(whole)
    assert verify(run / "11").steps[0].verified


def test_a_lost_tree_is_told_without_a_seal(run):
    (run / "4" / "SHA256SUMS").unlink()
    shutil.rmtree(run / "4" / "model")
    assert str(verify(run / "4")) == "step 4 is damaged: model: is missing"


def test_a_step_of_plain_orbax_is_read(tmp_path):
    ocp.save_checkpointables(str(tmp_path / "3"), {"model": {"w": np.ones((90, 50)), "i": 3}})
    assert str(verify(tmp_path)) == "step 3 is readable, not verified"
    largest = max((tmp_path / "3").rglob("d/*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(b"")
    (found,) = verify(tmp_path / "3").steps
    assert found.problems
    assert "cannot be read" in str(found)


def test_safetensors(run):
    report, size = verify(run / "hf"), (run / "hf" / "model.safetensors").stat().st_size
    assert (report.ok, report.files, report.bytes) == (True, 1, size)
    (found,) = report.steps
    assert (found.step, str(found)) == (None, "hf is verified")
    flip(run / "hf" / "model.safetensors")
    report = verify(run / "hf")
    assert not report.ok
    assert "model.safetensors: holds other bits" in str(report)


@pytest.mark.thorough
def test_what_has_no_proof_is_told(tmp_path):
    save_file({"w": np.ones(3)}, tmp_path / "x.safetensors")
    assert str(verify(tmp_path / "x.safetensors")) == "x.safetensors is readable, not verified"


@pytest.mark.thorough
def test_nothing_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"must be a committed step, got .*, which holds none; give"
    ):
        verify(tmp_path)


def test_the_digest_of_a_step_is_that_of_its_checksums(tmp_path):
    with Store(tmp_path / "run") as store:
        store.save(3, model={"w": np.arange(9.0)})
    step = tmp_path / "run" / "3"
    wanted = hashlib.sha256((step / "SHA256SUMS").read_bytes()).hexdigest()
    assert verified_digest(step) == f"sha256:{wanted}"
    file = max((f for f in step.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(DamageError, match="got damage in"):
        verified_digest(step)


def test_a_step_of_plain_orbax_is_refused(tmp_path):
    """Its files may have checksums, but nobody wrote down what its arrays are."""
    step = tmp_path / "12"
    ocp.save_checkpointables(str(step), {"params": {"w": np.ones(3)}})
    with pytest.raises(ValueError, match=r"must have checksums, got '.*12' without SHA256SUMS: sa"):
        verified_digest(step)
    checksums.write(step)
    with pytest.raises(
        ValueError, match=r"must be verified by its digests, got step 12 is readabl"
    ):
        verified_digest(step)

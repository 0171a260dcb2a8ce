# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A save is all or nothing, and the file of weights is shared by equal versions."""

import dataclasses
import hashlib
import json
import resource
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from dovetail_serve import BundleError, HostFunction, Platform, Tensor, export, load, verify
from dovetail_serve.bundle import folder
from dovetail_serve.bundle.folder import open_bundle
from dovetail_serve.bundle.manifest import GOLDEN, MANIFEST, SUMS, WEIGHTS

PROGRAMS = Path(__file__).parents[1] / "programs"


def bundle(*, rows=3, seed=0, scale=1.0, **options):
    random = np.random.default_rng(seed)
    weights = {"w": random.normal(size=(64, 48)).astype("float32"), "b": np.float32(0.5)}
    return export(
        lambda p, *, x: {"y": (x @ p["w"] + p["b"]) * scale},
        weights,
        inputs={"x": Tensor(("batch", 64), "float32")},
        example={"x": random.normal(size=(rows, 64)).astype("float32")},
        **{"platforms": ["cpu"], "batch_sizes": (2,)} | options,
    )


@pytest.mark.thorough
def test_the_digest_is_that_of_the_manifest(tmp_path):
    digest = bundle().save(tmp_path / "1")
    assert (
        digest == f"sha256:{hashlib.sha256((tmp_path / '1' / MANIFEST).read_bytes()).hexdigest()}"
    )
    assert digest == verify(tmp_path / "1").digest


@pytest.mark.thorough
def test_equal_exports_have_one_digest_at_one_time(tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    digests = [bundle().save(tmp_path / name) for name in ("1", "2")]
    assert digests[0] == digests[1]
    assert open_bundle(tmp_path / "1").manifest.created == "2023-11-14T22:13:20+00:00"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000001")
    assert bundle().save(tmp_path / "3") != digests[0]


@pytest.mark.thorough
def test_sha256sum_accepts_the_checksums(tmp_path):
    bundle(assets={"a.txt": b"x"}).save(tmp_path / "1")
    subprocess.run(["sha256sum", "--strict", "-c", SUMS], cwd=tmp_path / "1", check=True)


@pytest.mark.thorough
def test_assets_come_from_bytes_or_files(tmp_path):
    (tmp_path / "vocabulary").write_bytes(b"a b c")
    assets = {"from_file": tmp_path / "vocabulary", "from_bytes": b"d"}
    bundle(assets=assets).save(tmp_path / "1")
    assets = load(tmp_path / "1").assets
    assert {name: path.read_bytes() for name, path in assets.items()} == {
        "from_file": b"a b c",
        "from_bytes": b"d",
    }


@pytest.mark.thorough
def test_a_bundle_that_no_reader_would_take_is_not_written(tmp_path):
    with pytest.raises(BundleError, match="batch_sizes must ascend from 1, got"):
        dataclasses.replace(bundle(), batch_sizes=(2, 1)).save(tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_what_is_at_the_path_stays(tmp_path):
    bundle().save(tmp_path / "1")
    before = verify(tmp_path / "1").digest
    with pytest.raises(FileExistsError, match="the destination must be new"):
        bundle(seed=1).save(tmp_path / "1")
    assert verify(tmp_path / "1").digest == before
    assert [path.name for path in tmp_path.iterdir()] == ["1"]


def test_layouts_are_stored_by_the_names_of_weights(tmp_path):
    bundle(platforms=[Platform(name="cpu", layouts={"{w,v}": (1, 0)})]).save(tmp_path / "1")
    assert open_bundle(tmp_path / "1").manifest.platforms[0].layouts == {"w": (1, 0)}


@pytest.mark.thorough
@pytest.mark.parametrize("limit", [10, 2000, 12_000])
def test_a_full_disk_leaves_nothing(limit, tmp_path):
    saved = bundle()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores the signal, so a write beyond the limit raises OSError, as on a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            saved.save(tmp_path / "1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
    saved.save(tmp_path / "1")
    verify(tmp_path / "1")


@pytest.mark.thorough
@pytest.mark.parametrize("seconds", ["", "now", "9" * 30])
def test_a_source_date_that_is_no_time_is_refused(tmp_path, monkeypatch, seconds):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", seconds)
    with pytest.raises(ValueError, match=r"EPOCH must be seconds since 1970, got '.*'; unset it"):
        bundle().save(tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


def test_a_donated_weight_is_named(tmp_path):
    weight = jax.numpy.asarray(np.random.default_rng(0).normal(size=(4, 3)).astype("float32"))
    exported = export(
        lambda p, *, x: {"y": x @ p["w"]},
        {"w": weight},
        inputs={"x": Tensor(("batch", 4), "float32")},
        example={"x": np.random.default_rng(1).normal(size=(2, 4)).astype("float32")},
        platforms=["cpu"],
        batch_sizes=(1,),
    )
    weight.delete()
    with pytest.raises(RuntimeError, match=r"must exist until save, got 'w', .*; call save before"):
        exported.save(tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough("it kills processes")
@pytest.mark.capability("a kill at any point of a save")
def test_a_killed_save_leaves_no_bundle_or_a_whole_one(tmp_path):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", PROGRAMS / "killed_saves.py", tmp_path],
        capture_output=True,
        text=True,
        check=True,
        env={"JAX_PLATFORMS": "cpu"},
    )
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    calls = {line["call"] for line in lines}
    # Each kind of change was interrupted; a save that ran through came last.
    assert {"open", "write", "mkdir", "fsync", "rename", "link", "unlink", None} == calls
    assert len(lines) > 40
    assert lines[-1]["call"] is None
    assert [bool(line["digest"]) for line in lines] == [
        line["left"] == ["1", "2"] for line in lines
    ]
    renamed = next(i for i, line in enumerate(lines) if line["call"] == "rename")
    assert [bool(line["digest"]) for line in lines] == [i >= renamed for i in range(len(lines))]


@pytest.mark.thorough
def test_equal_weights_of_two_versions_are_one_file(tmp_path):
    bundle().save(tmp_path / "1")
    bundle(scale=2.0).save(tmp_path / "2")
    one, two = tmp_path / "1" / WEIGHTS, tmp_path / "2" / WEIGHTS
    assert one.samefile(two)
    assert verify(tmp_path / "1").digest != verify(tmp_path / "2").digest
    x = np.random.default_rng(5).normal(size=(2, 64)).astype("float32")
    np.testing.assert_array_equal(
        load(tmp_path / "2")(x=x)["y"], 2 * load(tmp_path / "1")(x=x)["y"]
    )


@pytest.mark.thorough
@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o444), (0o027, 0o440), (0o077, 0o400)])
def test_nobody_may_write_to_arrays(tmp_path, umask, mask, mode):
    umask(mask)
    for version in ("1", "2"):
        bundle().save(tmp_path / version)
        for file in (WEIGHTS, GOLDEN):
            assert stat.S_IMODE((tmp_path / version / file).stat().st_mode) == mode
    assert (tmp_path / "1" / WEIGHTS).samefile(tmp_path / "2" / WEIGHTS)
    shutil.rmtree(tmp_path / "1")
    verify(tmp_path / "2")


@pytest.mark.thorough
def test_a_manifest_that_no_reader_would_take_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "MAX_MANIFEST_BYTES", 2000)
    with pytest.raises(BundleError, match=r"json must have at most 2000 bytes, .*; stack the"):
        bundle().save(tmp_path / "1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_tensors_keep_the_order_of_the_exporter(tmp_path):
    def tensors(names):
        return {name: Tensor(("batch", 2), "float32") for name in names}

    random = np.random.default_rng(2)
    texts = {name: Tensor(("batch",), "bytes") for name in ("title", "body")}
    exported = export(
        lambda p, *, zeta, alpha: {"y": zeta - alpha},
        {},
        inputs=tensors(["zeta", "alpha"]),
        example={name: random.normal(size=(3, 2)).astype("float32") for name in ("alpha", "zeta")},
        before=HostFunction("encode", texts),
        platforms=["cpu"],
        batch_sizes=(2,),
        provenance={"z": "1", "a": "2"},
    )
    exported.save(tmp_path / "1")
    manifest = open_bundle(tmp_path / "1").manifest
    assert list(manifest.signature.inputs) == ["zeta", "alpha"]
    assert list(manifest.outer.inputs) == ["title", "body"]
    assert list(load(tmp_path / "1", functions={"encode": lambda a, f: a}).signature.inputs) == [
        "title",
        "body",
    ]
    # Other keys are sorted, so that the order of a dictionary of options changes no digest.
    assert list(manifest.provenance) == ["a", "z"]


@pytest.mark.thorough
def test_a_default_device_array_is_saved_like_numpy(tmp_path):
    random = np.random.default_rng(0)
    array = random.normal(size=(4, 3)).astype("float32")
    for version, params in (("1", {"w": array}), ("2", {"w": jax.numpy.asarray(array)})):
        export(
            lambda p, *, x: {"y": x @ p["w"]},
            params,
            inputs={"x": Tensor(("batch", 4), "float32")},
            example={"x": random.normal(size=(2, 4)).astype("float32")},
            platforms=["cpu"],
            batch_sizes=(1,),
        ).save(tmp_path / version)
    assert (tmp_path / "1" / WEIGHTS).samefile(tmp_path / "2" / WEIGHTS)


def aligned(values):
    """Returns a copy of the values whose memory JAX on a CPU shares instead of copying it."""
    memory = np.empty(values.nbytes + 64, "uint8")
    start = -memory.ctypes.data % 64
    array = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    array[:] = values
    return array


@pytest.mark.thorough
@pytest.mark.parametrize("placed", [lambda array: array, jax.device_put], ids=["numpy", "jax"])
def test_weights_that_change_after_the_export_are_not_saved(placed, tmp_path):
    kernel = aligned(np.random.default_rng(0).normal(size=(64, 4)).astype("float32"))
    exported = export(
        lambda p, *, x: {"y": x @ p["w"] + p["b"]},
        {"b": np.float32(0.5), "w": placed(kernel)},
        inputs={"x": Tensor(("batch", 64), "float32")},
        example={"x": np.random.default_rng(1).normal(size=(2, 64)).astype("float32")},
        platforms=["cpu"],
        batch_sizes=(1,),
    )
    exported.save(tmp_path / "1")
    kernel *= 2
    with pytest.raises(RuntimeError, match=r"must not change .* values of 'w'; call export"):
        exported.save(tmp_path / "2")
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    kernel /= 2
    exported.save(tmp_path / "2")
    verify(tmp_path / "2")

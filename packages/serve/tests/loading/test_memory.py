# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Weights in memory: files that change under a model, and the bound for all models."""

import gc
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from dovetail_serve import BundleError, MemoryExceeded, Tensor, export, load
from dovetail_serve.bundle.arrays import places, read_array
from dovetail_serve.loading import memory as memory_module
from dovetail_serve.loading.memory import WeightMemory, machine_bytes

WEIGHTS = "weights.safetensors"
X = np.random.default_rng(4).normal(size=(3, 128)).astype("float32")
BYTES = 128 * 128 * 4


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A bundle whose only weight, the identity, would be mapped: y = x @ w."""
    path = tmp_path_factory.mktemp("saved") / "1"
    export(
        lambda params, *, x: {"y": x @ params["w"]},
        {"w": np.eye(128, dtype="float32")},
        inputs={"x": Tensor(("batch", 128), "float32")},
        example={"x": X},
        platforms=("cpu",),
        batch_sizes=(3,),
    ).save(path)
    (path / WEIGHTS).chmod(0o644)  # weights are read-only
    return path


def replace(path):
    (path.parent / "new").write_bytes(b"another")
    (path.parent / "new").rename(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda path: os.truncate(path, 0),
        lambda path: os.truncate(path, 100),
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
        lambda path: path.unlink(),
        replace,
    ],
)
def test_a_model_does_not_notice_what_becomes_of_its_files(saved, tmp_path, change):
    """A map of a file that is cut short would end this process."""
    shutil.copytree(saved, tmp_path / "1")
    model = load(tmp_path / "1")
    for path in [path for path in (tmp_path / "1").rglob("*") if path.is_file()]:
        path.chmod(0o644)
        change(path)
    np.testing.assert_array_equal(model(x=X)["y"], X)
    model.self_test().check()
    assert model.verify() == 1


def test_no_file_of_a_loaded_bundle_is_mapped(saved):
    model = load(saved)
    assert not model.maps_weights
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert str(saved) not in maps.read_text()
    values = read_array(saved / WEIGHTS, places(saved / WEIGHTS, {"w": "float32"})["w"])
    assert values.ctypes.data % 64 == 0
    assert not values.flags.writeable


def test_all_models_have_a_bound_together(saved, tmp_path):
    memory = WeightMemory(limit_bytes=2 * BYTES - 1)
    one = load(saved, memory=memory)
    with pytest.raises(MemoryExceeded) as error:
        load(saved, memory=memory)
    assert isinstance(error.value, BundleError)
    for part in (
        f"at most {2 * BYTES - 1} bytes",
        f"got {BYTES} and {BYTES} of other models",
        "map_weights=True (serve --map-weights)",
    ):
        assert part in str(error.value)
    # Shared and mapped weights need none.
    two = load(saved, memory=memory, share=[one])
    np.testing.assert_array_equal(load(saved, map_weights=True, memory=memory)(x=X)["y"], X)
    assert memory.held_bytes == BYTES
    del one
    gc.collect()
    assert memory.held_bytes == BYTES
    np.testing.assert_array_equal(two(x=X)["y"], X)
    del two
    gc.collect()
    assert memory.held_bytes == 0


def test_a_failed_load_holds_nothing(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "1")
    with open(tmp_path / "1" / WEIGHTS, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\7")
    memory = WeightMemory()
    with pytest.raises(BundleError, match="array 'w' differs"):
        load(tmp_path / "1", memory=memory)
    assert memory.held_bytes == 0


def test_the_bound_is_a_share_of_what_the_container_may_use(monkeypatch, tmp_path):
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    files = (tmp_path / "memory.max", tmp_path / "absent")
    monkeypatch.setattr(memory_module, "_LIMITS", files)
    for text, expected in (("max\n", physical), ("4096000\n", 4096000), ("9" * 19, physical)):
        files[0].write_text(text)
        assert machine_bytes() == expected
        assert WeightMemory().limit_bytes == int(0.75 * expected)
    monkeypatch.delattr(os, "sysconf")
    assert machine_bytes() == sys.maxsize

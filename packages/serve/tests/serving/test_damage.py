# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes into the weights of a version in use. Those of `mapped` are the map of their file."""

import os
import shutil

import numpy as np
import pytest

from dovetail_serve import IntegrityError, Platform, Tensor, export, load
from dovetail_serve.serving.damage import check_weights, written
from dovetail_serve.serving.scan import fingerprint

WEIGHTS = "weights.safetensors"


def flip(path):
    """Flips a bit of the last weight in place."""
    with open(path / WEIGHTS, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read()[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


def test_a_write_in_place_is_told_from_a_rename_and_a_deletion(mapped, tmp_path):
    path = tmp_path / "1"
    shutil.copytree(mapped, path)
    before = fingerprint(path)
    assert not written(before, before)
    (path / "programs" / "more").write_text("")
    assert not written(before, fingerprint(path))
    shutil.copy(path / WEIGHTS, tmp_path / "new")
    os.link(path / WEIGHTS, tmp_path / "kept")  # or the new file could have the old one's inode
    (tmp_path / "new").rename(path / WEIGHTS)
    renamed = fingerprint(path)
    assert not written(before, renamed)
    flip(path)
    assert written(renamed, fingerprint(path))
    assert not written(before, fingerprint(path))
    assert not written(before, ())


def test_weights_that_were_written_in_place_are_compared(mapped, tmp_path):
    path = tmp_path / "1"
    shutil.copytree(mapped, path)
    model, before = load(path, map_weights=True), fingerprint(path)
    check_weights(model, before, before)
    os.utime(path / WEIGHTS, ns=(5, 5))
    check_weights(model, before, fingerprint(path))
    flip(path)
    with pytest.raises(IntegrityError, match="the array 'w' in memory must have its digest"):
        check_weights(model, before, fingerprint(path))
    model.maps_weights = False  # then they are copies
    check_weights(model, before, fingerprint(path))


def test_a_file_in_use_that_was_cut_short_is_not_read(mapped, tmp_path):
    """Reading beyond its end would end this process."""
    path = tmp_path / "1"
    shutil.copytree(mapped, path)
    model, before = load(path, map_weights=True), fingerprint(path)
    size = (path / WEIGHTS).stat().st_size
    os.truncate(path / WEIGHTS, 100)
    with pytest.raises(IntegrityError, match="must stay as it is while it is in use") as error:
        check_weights(model, before, fingerprint(path))
    assert f"got 100 bytes of {size}" in str(error.value)
    assert "save a new version beside it" in str(error.value)
    os.truncate(path / WEIGHTS, size)  # before the model is released


def test_weights_that_were_converted_are_copies_and_stay_right(tmp_path):
    path = tmp_path / "1"
    x = np.random.default_rng(0).normal(size=(3, 64)).astype("float32")
    export(
        lambda params, *, x: {"y": x @ params["w"].astype("float32")},
        {"w": np.eye(64, dtype="float32")},
        inputs={"x": Tensor(("batch", 64), "float32")},
        example={"x": x},
        platforms=(Platform(name="cpu", weights="bfloat16"),),
        batch_sizes=(4,),
    ).save(path)
    (path / WEIGHTS).chmod(0o644)
    model, before = load(path, map_weights=True), fingerprint(path)
    flip(path)
    os.truncate(path / WEIGHTS, 100)
    assert written(before, fingerprint(path))
    check_weights(model, before, fingerprint(path))
    np.testing.assert_array_equal(model(x=x)["y"], x)

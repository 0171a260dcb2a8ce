# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Only an intact and equal file of weights is shared, and a copy is made wherever a link fails."""

import errno
import logging
import os

import numpy as np
import pytest

from dovetail_serve.bundle.arrays import write_arrays
from dovetail_serve.bundle.manifest import WEIGHTS
from dovetail_serve.exporting.sharing import link_equal
from dovetail_serve.testing import save_mlp


@pytest.fixture
def saved(tmp_path):
    save_mlp(tmp_path / "1", batch_sizes=(1,))
    return tmp_path / "1"


def weights(saved, **changes):
    from dovetail_serve.bundle.folder import open_bundle

    arrays = open_bundle(saved).arrays(WEIGHTS)
    return {name: np.array(array) for name, array in arrays.items()} | changes


@pytest.mark.thorough
def test_an_equal_file_is_linked_and_described(saved, tmp_path):
    arrays = weights(saved)
    written = link_equal(tmp_path / "new", arrays, beside=tmp_path / "2")
    assert (tmp_path / "new").samefile(saved / WEIGHTS)
    assert written == write_arrays(tmp_path / "copy", arrays)


@pytest.mark.parametrize("change", ["value", "name", "dtype", "shape"])
def test_another_file_is_not(saved, tmp_path, change):
    arrays = weights(saved)
    name, array = next(iter(arrays.items()))
    if change == "name":
        arrays["other"] = arrays.pop(name)
    elif change == "value":
        array[0, 0] += 1
    else:
        arrays[name] = array.view("int32") if change == "dtype" else array.T
    assert link_equal(tmp_path / "new", arrays, beside=tmp_path / "2") is None
    assert not (tmp_path / "new").exists()


def test_damage_does_not_spread(saved, tmp_path, caplog):
    arrays = weights(saved)
    mode = (saved / WEIGHTS).stat().st_mode
    (saved / WEIGHTS).chmod(0o644)
    with open(saved / WEIGHTS, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    (saved / WEIGHTS).chmod(mode)
    with caplog.at_level(logging.WARNING):
        assert link_equal(tmp_path / "new", arrays, beside=tmp_path / "2") is None
    assert "differs from its digest" in caplog.text
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("mode", "mask"),
    [(0o644, 0o022), (0o464, 0o022), (0o446, 0o022), (0o400, 0o022), (0o444, 0o077)],
)
def test_a_file_is_not_shared_if_others_may_write_or_read_it(
    saved, tmp_path, caplog, umask, mode, mask
):
    umask(mask)
    (saved / WEIGHTS).chmod(mode)
    assert link_equal(tmp_path / "new", weights(saved), beside=tmp_path / "2") is None
    assert "other permissions than a new file" in caplog.text
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("owner", [(54321, -1), (-1, 54321)])
def test_a_file_of_another_user_is_not_shared(saved, tmp_path, caplog, owner):
    os.chown(saved / WEIGHTS, *owner)
    assert link_equal(tmp_path / "new", weights(saved), beside=tmp_path / "2") is None
    assert "another owner" in caplog.text


def test_without_hard_links_nothing_is_shared(saved, tmp_path, monkeypatch, caplog):
    def link(*paths, **options):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", link)
    with caplog.at_level(logging.INFO):
        assert link_equal(tmp_path / "new", weights(saved), beside=tmp_path / "2") is None
    assert "cannot be linked" in caplog.text


def test_neighbours_that_are_no_bundles_are_passed_over(saved, tmp_path):
    (tmp_path / "0").mkdir()
    (tmp_path / "00").mkdir()
    (tmp_path / "00" / "manifest.json").write_text("{}")
    (tmp_path / "000").write_bytes(b"x")
    (tmp_path / ".1.partial").mkdir()
    (tmp_path / "link").symlink_to(saved)
    assert link_equal(tmp_path / "new", weights(saved), beside=tmp_path / "2") is not None
    # The version itself is no neighbour.
    assert link_equal(tmp_path / "newer", weights(saved), beside=saved) is None

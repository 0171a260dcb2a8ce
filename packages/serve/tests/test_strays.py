# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import shutil

import pytest

from dovetail_serve import IntegrityError, load, verify
from dovetail_serve.bundle.strays import stray
from dovetail_serve.testing import save_mlp


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (".weights.safetensors.Ab3dE1", "of rsync"),
        (".rsync-partial", "of rsync"),
        (".nfs000000000a3f00120000002b", "on NFS"),
        (".fuse_hidden0000000700000001", "on FUSE"),
        (".DS_Store", "for the Finder"),
        ("._manifest.json", "for the Finder"),
        (".goutputstream-X3F2Z1", "of GLib"),
        (".syncthing.weights.safetensors.tmp", "of Syncthing"),
        ("weights.safetensors_.gstmp", "of gsutil"),
        ("weights.safetensors.6eF1a2B3", "of the AWS command"),
        (".manifest.json.swp", "of an editor"),
    ],
)
def test_a_stray_file_is_described(name, kind):
    assert kind in stray(name)


def test_a_file_with_another_name_is_none():
    for name in ("notes.txt", ".hidden", "weights.safetensors.part", "manifest.json~"):
        assert stray(name) is None


def test_strays_are_ignored_with_a_line_and_other_files_are_damage(tmp_path, caplog):
    save_mlp(tmp_path / "1", batch_sizes=(1,))
    for name in (".weights.safetensors.Ab3dE1", ".DS_Store", "programs/.nfs000000000a3f0012"):
        (tmp_path / "1" / name).write_bytes(b"x")
    (tmp_path / "1/.rsync-partial").mkdir()
    verify(tmp_path / "1")
    load(tmp_path / "1", verify="files")
    for part in ("Ab3dE1 reason=it is a temporary file of rsync", ".DS_Store reason=it is made by"):
        assert part in caplog.text
    (tmp_path / "1/golden.safetensors").rename(tmp_path / "1/.golden.safetensors.zzzzzz")
    with pytest.raises(IntegrityError, match=r"missing or a link; \.golden.* of rsync") as error:
        verify(tmp_path / "1")
    assert error.value.file == "golden.safetensors"
    (tmp_path / "1/.golden.safetensors.zzzzzz").rename(tmp_path / "1/golden.safetensors")
    shutil.copy(tmp_path / "1/manifest.json", tmp_path / "1/manifest.json~")
    with pytest.raises(IntegrityError, match=r"manifest\.json~: manifest\.json does not"):
        verify(tmp_path / "1")

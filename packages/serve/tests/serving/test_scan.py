# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import os

import pytest

from dovetail_serve.serving.scan import fingerprint, scan_models, scan_versions


def test_models_are_directories_that_are_not_hidden(files):
    files.put("mlp", 1)
    for name in (".hidden", "vit", "two words"):
        (files.root / name).mkdir()
    (files.root / "README.md").write_text("a file")
    models = scan_models(files.root)
    assert models.names == ("mlp", "vit")
    assert list(models.ignored) == ["two words"]
    assert "letters, digits" in models.ignored["two words"]


def test_a_bundle_in_place_of_a_model_is_ignored_with_the_name_to_give(files):
    files.put("mlp", 1).rename(files.root / "alone")
    models = scan_models(files.root)
    assert models.names == ("mlp",)
    assert "move it to alone/1" in models.ignored["alone"]


def test_a_bundle_in_place_of_a_repository_is_refused(files):
    path = files.put("mlp", 1)
    with pytest.raises(ValueError, match="a directory for each model") as error:
        scan_models(path)
    assert f"{str(path)!r} is a bundle" in str(error.value)
    assert "move it to REPOSITORY/NAME/1" in str(error.value)


def test_versions_are_numbers_with_a_manifest(files):
    for version in (1, 12):
        files.put("mlp", version)
    for name in ("3", "04", "latest", ".5.partial"):
        (files.root / "mlp" / name).mkdir()
    (files.path("mlp", 12) / "manifest.json").unlink()
    versions = scan_versions(files.root / "mlp")
    assert list(versions.fingerprints) == [1]
    assert sorted(versions.ignored) == ["04", "latest"]
    assert "integer from 1" in versions.ignored["04"]


def test_a_version_deleted_while_it_is_scanned_is_none(files, monkeypatch):
    files.put("mlp", 1)
    files.put("mlp", 2)
    listed, walk = scan_versions(files.root / "mlp").fingerprints, os.walk

    def delete_and_walk(folder):
        if folder.name == "2":
            files.delete("mlp", 2)
        return walk(folder)

    monkeypatch.setattr(os, "walk", delete_and_walk)
    assert scan_versions(files.root / "mlp").fingerprints == {1: listed[1]}


def test_a_link_to_a_bundle_is_a_version(files):
    files.put("mlp", 1)
    files.path("mlp", 2).symlink_to("1")
    fingerprints = scan_versions(files.root / "mlp").fingerprints
    assert fingerprints[2] == fingerprints[1]


def _rewrite(path):
    """Another last byte, of the same size and time of modification, as another file."""
    data, stat = path.read_bytes(), path.stat()
    (path.parent / "new").write_bytes(data[:-1] + b"\0")
    (path.parent / "new").rename(path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _truncate(path):
    path.chmod(0o644)  # weights are read-only
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize(
    "change",
    [
        _rewrite,
        lambda path: path.unlink(),
        lambda path: path.rename(path.with_name("other")),
        lambda path: os.utime(path, ns=(5, path.stat().st_mtime_ns + 1)),
        _truncate,
        lambda path: (path.parent / "programs" / "more").write_text(""),
    ],
)
def test_a_fingerprint_changes_with_the_files(files, change):
    path = files.put("mlp", 1)
    before = fingerprint(path)
    change(path / "weights.safetensors")
    assert fingerprint(path) != before


def test_a_fingerprint_stays_when_files_are_read_or_linked(files, tmp_path):
    path = files.put("mlp", 1)
    before = fingerprint(path)
    (path / "weights.safetensors").read_bytes()
    os.link(path / "weights.safetensors", tmp_path / "link")
    assert fingerprint(path) == before
    assert [name for name, *_ in before] == sorted(
        file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()
    )


def test_a_link_to_itself_concerns_nothing_but_itself(files):
    path = files.put("mlp", 1)
    before = fingerprint(path)
    for loop in (files.root, files.root / "mlp", path, path / "programs"):
        (loop / "loop").symlink_to("loop")
    files.path("mlp", 7).symlink_to("7")
    models, versions = scan_models(files.root), scan_versions(files.root / "mlp")
    assert models.names == ("mlp",)
    assert models.ignored["loop"] == "it cannot be read: Too many levels of symbolic links"
    assert versions.ignored == models.ignored
    # A version that cannot be read is none that was deleted.
    assert versions.fingerprints == {1: before, 7: ()}

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A damaged bundle is refused by the name of its file and array; an intact one verifies."""

import hashlib
import os
import shutil
import subprocess
import zipfile

import jax
import numpy as np
import pytest

from dovetail_serve import _safetensors
from dovetail_serve.bundle.folder import MAX_MANIFEST_BYTES, open_bundle, verify_folder
from dovetail_serve.bundle.manifest import GOLDEN, MANIFEST, SUMS, WEIGHTS
from dovetail_serve.errors import BundleError, IntegrityError
from dovetail_serve.exporting.export import export
from dovetail_serve.types import Tensor

PROGRAM, ASSET = "programs/cpu.1.stablehlo", "assets/labels.txt"
FILES = {MANIFEST, SUMS, WEIGHTS, GOLDEN, ASSET, PROGRAM, "programs/cpu.4.stablehlo"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A bundle with weights of three dtypes, one of them of an odd size, and an asset."""
    path = tmp_path_factory.mktemp("repo") / "1"
    random = np.random.default_rng(0)
    weights = {
        "kernel": random.normal(size=(16, 12)).astype("float32"),
        "bias": random.normal(size=12).astype(jax.numpy.bfloat16),
        "steps": np.int32(7),
    }
    export(
        lambda p, *, x: {"y": x @ p["kernel"] + p["bias"], "n": x[:, :1] * p["steps"]},
        weights,
        inputs={"x": Tensor(("batch", 16), "float32")},
        example={"x": random.normal(size=(3, 16)).astype("float32")},
        platforms=["cpu"],
        batch_sizes=(1, 4),
        assets={"labels.txt": b"cat dog" * 30},
    ).save(path)
    return path


@pytest.fixture
def bundle(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "1")


def regions(path):
    """Yields (file, array, start, stop) for each byte region of a bundle."""
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        name = file.relative_to(path).as_posix()
        if not name.endswith(".safetensors"):
            yield name, None, 0, file.stat().st_size
            continue
        tensors = _safetensors.read_header(file).tensors
        yield name, None, 0, min(tensor.start for tensor in tensors.values())
        for array, tensor in tensors.items():
            yield name, array, tensor.start, tensor.stop


def flip(file, at, bit):
    file.chmod(0o644)  # arrays are read-only
    with open(file, "r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ (1 << bit)]))


@pytest.mark.thorough
def test_an_intact_bundle_is_counted(saved):
    report = verify_folder(open_bundle(saved))
    text = (saved / MANIFEST).read_bytes()
    assert report.digest == f"sha256:{hashlib.sha256(text).hexdigest()}"
    assert report.files == sum(file.is_file() for file in saved.rglob("*"))
    assert report.arrays == 3 + 1 + 2
    sizes = {file.name: file.stat().st_size for file in saved.rglob("*") if file.is_file()}
    assert report.bytes == sum(sizes.values())
    assert str(report).startswith(
        f"{report.files} files with {report.arrays} arrays, {report.bytes:,}"
    )


def test_checksums_are_those_of_sha256sum(saved):
    lines = (saved / SUMS).read_text().splitlines()
    digests = dict(reversed(line.split("  ")) for line in lines)
    files = {f.relative_to(saved).as_posix() for f in saved.rglob("*") if f.is_file()} - {SUMS}
    assert digests == {
        name: hashlib.sha256((saved / name).read_bytes()).hexdigest() for name in files
    }
    assert {*FILES} - {SUMS} <= digests.keys()


@pytest.mark.capability("flipped bits are refused by file and array")
def test_a_flipped_bit_is_refused_by_file_and_array(bundle):
    random = np.random.default_rng(3)
    whole = list(regions(bundle))
    assert {file for file, *_ in whole} >= FILES
    assert len([array for _, array, *_ in whole if array]) == 6
    # Every region at its first and last byte, and four more places in each.
    places = [(r, at) for r in whole for at in (r[2], r[3] - 1, *random.integers(r[2], r[3], 4))]
    assert len(places) >= 60
    for (file, array, _, _), at in places:
        bit = int(random.integers(8))
        flip(bundle / file, int(at), bit)
        with pytest.raises(IntegrityError) as caught:
            verify_folder(open_bundle(bundle))
        flip(bundle / file, int(at), bit)
        # The manifest and its line in the checksums differ from each other; either is named.
        assert caught.value.file in ((MANIFEST, SUMS) if file == SUMS else (file,)), (file, at)
        assert caught.value.array == array
        for part in (str(bundle), caught.value.file, repr(array) if array else "", "copy it again"):
            assert part in str(caught.value)
    verify_folder(open_bundle(bundle))


@pytest.mark.parametrize("file", sorted(FILES))
@pytest.mark.parametrize("change", ["cut", "longer", "empty", "gone", "link", "fifo", "folder"])
def test_another_file_in_the_place_of_one_is_refused(bundle, file, change):
    path = bundle / file
    data = path.read_bytes()
    path.unlink()
    if change == "link":
        (bundle.parent / "elsewhere").write_bytes(data)
        path.symlink_to(bundle.parent / "elsewhere")
    elif change == "fifo":
        os.mkfifo(path)
    elif change == "folder":
        path.mkdir()
    elif change != "gone":
        path.write_bytes({"cut": data[:-1], "longer": data + b"\n", "empty": b""}[change])
    if (file, change) == (MANIFEST, "gone"):
        with pytest.raises(FileNotFoundError, match=r"must have a manifest\.json.*repo/mlp/1"):
            open_bundle(bundle)
        return
    with pytest.raises(IntegrityError) as caught:
        open_bundle(bundle)
    assert caught.value.file in ((MANIFEST, SUMS) if file == SUMS else (file,))


@pytest.mark.parametrize(
    "name", ["x", "assets/x", "programs/x.pickle", ".hidden", "extra/", "assets/extra/", "\udcff"]
)
def test_a_file_or_folder_that_is_not_listed_is_refused(bundle, name):
    if name.endswith("/"):
        (bundle / name).mkdir()
    else:
        (bundle / name).write_bytes(b"x")
    with pytest.raises(
        IntegrityError, match=r"manifest\.json does not list it; delete it"
    ) as caught:
        open_bundle(bundle)
    caught.value.file.encode()  # printable
    assert caught.value.file == name.rstrip("/").replace("\udcff", "\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize("folder", ["programs", "assets"])
def test_a_link_in_the_place_of_a_folder_is_refused(bundle, folder):
    (bundle / folder).rename(bundle.parent / folder)
    (bundle / folder).symlink_to(bundle.parent / folder)
    with pytest.raises(IntegrityError, match="must be a directory, and is missing or a link"):
        open_bundle(bundle)


def test_a_link_of_the_same_size_is_refused(bundle):
    size = (bundle / ASSET).stat().st_size
    (bundle / ASSET).unlink()
    (bundle / ASSET).symlink_to("x" * size)
    assert (bundle / ASSET).lstat().st_size == size
    with pytest.raises(
        IntegrityError, match=r"labels\.txt: it must be a file, and is missing or a"
    ):
        open_bundle(bundle)


def test_a_link_to_a_bundle_is_followed(bundle):
    (bundle.parent / "latest").symlink_to(bundle)
    assert open_bundle(bundle.parent / "latest").digest == open_bundle(bundle).digest


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_an_archive_is_answered_by_one_sentence(bundle, suffix):
    archive = bundle.parent / f"mlp{suffix}"
    if suffix == ".zip":
        with zipfile.ZipFile(archive, "w") as opened:
            opened.writestr("../outside", b"x")
    else:
        archive.write_bytes(b"x")
    with pytest.raises(BundleError, match=r"is a directory, got the file .*; unpack an archive"):
        open_bundle(archive)


@pytest.mark.parametrize("name", [MANIFEST, SUMS])
def test_a_manifest_above_the_limit_is_not_read(bundle, name):
    # A hole: it costs no disk, and reading it would find zeros first.
    os.truncate(bundle / name, MAX_MANIFEST_BYTES + 1)
    limits = rf"at most {MAX_MANIFEST_BYTES} bytes, .*, got {MAX_MANIFEST_BYTES + 1}; stack"
    with pytest.raises(BundleError, match=limits):
        open_bundle(bundle)


def rewritten(bundle, **files):
    """Writes a manifest of other digests, as an attacker would, with the checksums to it."""
    manifest = open_bundle(bundle).manifest
    text = manifest.to_json()
    for old, new in files.values():
        assert old in text
        text = text.replace(old, new)
    sums = (bundle / SUMS).read_bytes()
    before = hashlib.sha256((bundle / MANIFEST).read_bytes()).hexdigest().encode()
    (bundle / MANIFEST).write_bytes(text)
    (bundle / SUMS).write_bytes(sums.replace(before, hashlib.sha256(text).hexdigest().encode()))


def test_arrays_must_have_the_shapes_of_the_manifest(bundle):
    rewritten(bundle, shape=(b"   16,\n    12\n", b"   12,\n    16\n"))
    with pytest.raises(IntegrityError, match="'kernel' has another shape") as caught:
        open_bundle(bundle).arrays(WEIGHTS)
    assert caught.value.array == "kernel"


def test_arrays_must_have_the_dtypes_of_the_manifest(bundle):
    rewritten(bundle, dtype=(b'"int32"', b'"uint32"'))
    with pytest.raises(IntegrityError, match="'steps' is I32, not uint32"):
        open_bundle(bundle).arrays(WEIGHTS)


def test_a_lie_about_a_whole_file_of_arrays_is_seen_by_sha256sum_alone(bundle):
    # The promise in docs/packages/serve.md: arrays have their digests, and they cover the file.
    before = open_bundle(bundle).manifest.files[WEIGHTS].sha256.encode()
    rewritten(bundle, whole=(before, b"0" * 64))
    (bundle / SUMS).write_bytes((bundle / SUMS).read_bytes().replace(before, b"0" * 64))
    assert verify_folder(open_bundle(bundle)).arrays == 3 + 1 + 2
    command = ["sha256sum", "-c", SUMS]
    told = subprocess.run(command, cwd=bundle, capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert [line for line in told.stdout.splitlines() if not line.endswith(": OK")] == [
        f"{WEIGHTS}: FAILED"
    ]


def test_a_file_is_compared_when_it_is_read(bundle):
    folder = open_bundle(bundle)
    assert folder.read(ASSET) == b"cat dog" * 30
    flip(bundle / ASSET, 5, 3)
    with pytest.raises(IntegrityError, match=r"labels\.txt: its bytes differ"):
        folder.read(ASSET)

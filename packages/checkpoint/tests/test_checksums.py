# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import hashlib
import random
import shutil
import subprocess

import numpy as np
import pytest

from dovetail_checkpoint.proof import checksums
from dovetail_checkpoint.proof.digest import hex_digests

LARGE = (1 << 20) + 4_000_003  # more than a block, and no whole words


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    root = tmp_path_factory.mktemp("step")
    (root / "item" / "d").mkdir(parents=True)
    (root / "item" / "d" / "data").write_bytes(bytes(range(256)) * 9)
    (root / "item" / "d" / "large").write_bytes(random.Random(0).randbytes(LARGE))
    (root / "item" / "empty").write_bytes(b"")
    (root / "_METADATA").write_text("{}")
    checksums.write(root)
    return root


@pytest.fixture
def hashed(original, tmp_path):
    return shutil.copytree(original, tmp_path / "step")


def wheres(directory, *, quick=False):
    return [problem.where for problem in checksums.check(directory, quick=quick)]


@pytest.mark.thorough
def test_sha256sum_reads_the_checksums(hashed):
    lines = (hashed / "SHA256SUMS").read_text().splitlines()
    want = hashlib.sha256(b"{}").hexdigest()
    assert lines[1] == f"{want}  _METADATA"
    names = [line[66:] for line in lines if not line.startswith("#")]
    assert names == ["_METADATA", "item/d/data", "item/d/large", "item/empty"]
    subprocess.run(["sha256sum", "--strict", "-c", "SHA256SUMS"], cwd=hashed, check=True)


def test_a_large_file_has_its_digest_and_size(hashed):
    data = (hashed / "item" / "d" / "large").read_bytes()
    words = np.frombuffer(data + bytes(-len(data) % 4), "<u4")
    lines = (hashed / "SHA256SUMS").read_text().splitlines()
    assert lines[4] == f"# fmix32-pair {hex_digests([words])[0]} {LARGE}"
    assert sum(line.startswith("# fmix32-pair") for line in lines) == 1


@pytest.mark.parametrize("quick", [False, True])
def test_an_intact_step_has_no_problem(hashed, quick):
    assert checksums.exists(hashed)
    assert checksums.check(hashed, quick=quick) == []


def rewrite(hashed, change):
    """Checksums with other lines and a matching first line."""
    body = change((hashed / "SHA256SUMS").read_text().partition("\n")[2])
    cover = hashlib.sha256(body.encode()).hexdigest()
    (hashed / "SHA256SUMS").write_text(f"# checksum {cover}\n{body}")


def test_quick_compares_large_files_by_digest_alone(hashed):
    sha256 = hashlib.sha256((hashed / "item" / "d" / "large").read_bytes()).hexdigest()
    rewrite(hashed, lambda body: body.replace(sha256, "0" * 64))
    assert (wheres(hashed), wheres(hashed, quick=True)) == (["item/d/large"], [])


def test_all_else_is_compared_by_sha256(hashed):
    digest = (hashed / "SHA256SUMS").read_text().splitlines()[4].split()[2]
    rewrite(hashed, lambda body: body.replace(digest, "0" * 16))
    assert (wheres(hashed), wheres(hashed, quick=True)) == ([], ["item/d/large"])


def test_checksums_without_digests_is_compared_by_sha256(hashed):
    lines = (hashed / "SHA256SUMS").read_text().splitlines()
    old = "".join(f"{line}\n" for line in lines if not line.startswith("#"))
    (hashed / "SHA256SUMS").write_text(old)
    assert (wheres(hashed), wheres(hashed, quick=True)) == ([], [])
    path = hashed / "item" / "d" / "large"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    assert wheres(hashed, quick=True) == ["item/d/large"]


@pytest.mark.thorough
def test_any_flipped_bit_of_the_checksums_is_found(hashed):
    good = (hashed / "SHA256SUMS").read_bytes()
    unnoticed = []
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        (hashed / "SHA256SUMS").write_bytes(bad)
        if not checksums.check(hashed, quick=True):
            unnoticed.append((bit, bytes(bad)))
    assert unnoticed == []


@pytest.mark.thorough
def test_any_cut_of_the_checksums_is_found(hashed):
    good = (hashed / "SHA256SUMS").read_bytes()
    unnoticed = []
    for size in range(len(good)):
        (hashed / "SHA256SUMS").write_bytes(good[:size])
        unnoticed += [] if checksums.check(hashed, quick=True) else [size]
    assert unnoticed == []


def flip(data, rng):
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def zero(data, rng):
    start = rng.randrange(len(data) - 4096)
    data[start : start + 4096] = bytes(4096)


def cut(data, rng):
    del data[rng.randrange(len(data)) :]


def lengthen(data, rng):
    data.extend(bytes(rng.randrange(1, 5)))


def swap(data, rng):
    a, b = sorted(rng.sample(range(0, len(data) - 512, 512), 2))
    data[a : a + 512], data[b : b + 512] = data[b : b + 512], data[a : a + 512]


@pytest.mark.thorough
@pytest.mark.parametrize("harm", [flip, zero, cut, lengthen, swap])
def test_any_harm_to_a_large_file_is_found_by_its_digest(hashed, harm):
    path, rng = hashed / "item" / "d" / "large", random.Random(4)
    good = path.read_bytes()
    found = []
    for _ in range(20):
        data = bytearray(good)
        harm(data, rng)
        path.write_bytes(data)
        found.append(wheres(hashed, quick=True))
    assert found == [["item/d/large"]] * 20


def test_no_seal_is_no_problem(tmp_path):
    assert not checksums.exists(tmp_path)
    assert checksums.check(tmp_path) == []


def test_the_changed_file_is_named(hashed):
    (hashed / "item" / "empty").write_bytes(b"x")
    assert wheres(hashed) == ["item/empty"]
    assert "SHA256SUMS says e3b0c44298fc" in checksums.check(hashed)[0].reason  # sha256 of nothing


def test_missing_and_added_files_are_named(hashed):
    (hashed / "_METADATA").rename(hashed / "other")
    assert wheres(hashed) == ["other", "_METADATA"]


@pytest.mark.parametrize(
    "text", ["", "\n", "nothing", "0" * 64 + "  cut", "0" * 64 + " *b\n", "# hashed\n"]
)
def test_a_damaged_seal_is_the_problem(hashed, text):
    (hashed / "SHA256SUMS").write_text(text)
    assert wheres(hashed) == ["SHA256SUMS"]


def test_a_seal_cut_at_a_line_is_found(hashed):
    rewrite(hashed, lambda body: body[: body.index("\n") + 1])
    assert wheres(hashed) == ["item/d/data", "item/d/large", "item/empty"]


def test_a_seal_that_lost_its_first_line_is_found(hashed):
    body = (hashed / "SHA256SUMS").read_text().partition("\n")[2]
    (hashed / "SHA256SUMS").write_text(body)
    assert wheres(hashed) == ["SHA256SUMS"]


def test_processes_share_the_lines(hashed):
    for name in ("_METADATA", "item/d/data", "item/d/large", "item/empty"):
        (hashed / name).write_bytes(b"changed")
    shares = [[p.where for p in checksums.check(hashed, part=i, parts=2)] for i in range(2)]
    assert shares == [["_METADATA", "item/d/large"], ["item/d/data", "item/empty"]]


def test_a_half_written_seal_is_no_seal(hashed):
    (hashed / "SHA256SUMS").rename(hashed / "SHA256SUMS.partial")
    assert not checksums.exists(hashed)
    checksums.write(hashed)
    assert checksums.check(hashed) == []

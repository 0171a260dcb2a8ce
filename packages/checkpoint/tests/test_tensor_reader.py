# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Safetensors files as a source: against the format's library, and damaged in every way."""

import json
import os
import random

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from dovetail_checkpoint.layout.tensor_reader import TensorReader, verify_safetensors
from dovetail_checkpoint.layout.tensor_writer import TensorFiles
from dovetail_checkpoint.proof.digest import hex_digests
from dovetail_checkpoint.proof.report import DamageError


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "layers.0.w": rng.normal(size=(9, 5)).astype(np.float32),
        "layers.1.w": rng.normal(size=(9, 5)).astype(np.float32),
        "embed": rng.normal(size=(7, 3)).astype(jnp.bfloat16),
        "step": np.array(2**40 + 1),
    }


@pytest.fixture
def ours(tmp_path):
    """An export of ours in two files."""
    tensors = arrays()
    leaves = {name: (x.shape, str(x.dtype)) for name, x in tensors.items()}
    (tmp_path / "ours").mkdir()
    with TensorFiles(tmp_path / "ours", leaves, file_bytes=300, metadata={}) as files:
        for name, x in tensors.items():
            files.write(name, (0,) * x.ndim, x)
        files.finish({name: hex_digests([x])[0] for name, x in tensors.items()})
    return tmp_path / "ours"


@pytest.fixture
def theirs(tmp_path):
    """One file of the format's library."""
    save_file(arrays(), tmp_path / "theirs.safetensors")
    return tmp_path / "theirs.safetensors"


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_host_reads_are_the_bytes(kind, request):
    reader = TensorReader(request.getfixturevalue(kind))
    found = reader.read(dict.fromkeys(reader.leaves))
    assert sorted(found) == ["embed", "layers.0.w", "layers.1.w", "step"]
    for name, x in arrays().items():
        value = found[name]
        assert (value.dtype, value.shape, value.tobytes()) == (x.dtype, x.shape, x.tobytes())


def test_leaves_are_described_without_reading_data(ours, monkeypatch):
    monkeypatch.delattr(os, "preadv")
    leaves = TensorReader(ours).leaves
    embed = leaves["embed"]
    assert (embed.name, embed.shape, embed.dtype) == ("embed", (7, 3), "bfloat16")
    assert {name: leaf.digest for name, leaf in leaves.items()} == {
        name: hex_digests([x])[0] for name, x in arrays().items()
    }


def test_theirs_have_no_digests(theirs):
    assert {leaf.digest for leaf in TensorReader(theirs).leaves.values()} == {None}


@pytest.mark.thorough
def test_devices_read_what_they_hold(run_program, tmp_path):
    lines = run_program("sharded_safetensors.py", tmp_path, devices=4).splitlines()
    # Beside whole tensors: a.b and q, cut along the last axis, are read by rows, once for each of
    # their parts: 8*6*2 bytes for both halves of a.b, 16 for both of q.
    assert lines[0] == f"whole {2 * 96 + 2 * 16}"
    assert lines[1] == f"named {96 + 4}"
    assert lines[2].startswith(
        "a leaf on a device must have a dtype that JAX keeps, got int64 of i"
    )
    assert lines[3] == str([2**40 + 1, 5])


def test_two_names_that_match_as_one_are_refused(tmp_path):
    save_file({"a.b": np.zeros(3), "a/b": np.ones(3)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="must have different names"):
        TensorReader(tmp_path / "x.safetensors")


def test_a_dtype_that_jax_lacks_is_refused(tmp_path):
    entry = {"x": {"dtype": "F4", "shape": [3, 2], "data_offsets": [0, 3]}}
    text = json.dumps(entry).encode()
    (tmp_path / "x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"123")
    with pytest.raises(ValueError, match=r"must be of dtype .*, got F4 of 'x' in .*convert"):
        TensorReader(tmp_path / "x.safetensors")


def test_verify_proves_ours(ours):
    assert verify_safetensors(ours) == (True, [])


def test_verify_reads_theirs_unproved(theirs):
    assert verify_safetensors(theirs) == (False, [])


def test_verify_names_every_damaged_file_and_leaf(ours):
    for path in sorted(ours.glob("*.safetensors")):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    verified, problems = verify_safetensors(ours)
    assert not verified
    assert [str(problem) for problem in problems] == [
        "model-00001-of-00002.safetensors: holds other bits than were written, in embed",
        "model-00002-of-00002.safetensors: holds other bits than were written, in layers.1.w",
    ]


def damages(rng: random.Random, data: bytes):
    """A file's bytes after one fault of each kind."""
    bit = rng.randrange(8 * len(data))
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    yield f"bit {bit}", bytes(flipped)
    cut = rng.randrange(len(data))
    yield f"cut at {cut}", data[:cut]
    start = rng.randrange(len(data))
    size = rng.randrange(1, 65)
    zeroed = data[:start] + bytes(len(data[start : start + size])) + data[start + size :]
    if zeroed != data:
        yield f"{size} zeroed at {start}", zeroed
    yield "longer", data + b"\0"


@pytest.mark.thorough
def test_damage_anywhere_is_found(ours):
    rng = random.Random(0)
    missed, tried = [], 0
    for path in sorted(ours.iterdir()):
        data = path.read_bytes()
        for _ in range(10):
            for what, damaged in damages(rng, data):
                path.write_bytes(damaged)
                tried += 1
                missed += [] if verify_safetensors(ours)[1] else [(path.name, what)]
        path.write_bytes(data)
    assert tried > 110
    assert missed == []


@pytest.mark.thorough
def test_flipped_bits_all_over_the_data_are_found(ours):
    path = ours / "model-00001-of-00002.safetensors"
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    missed = []
    with open(path, "r+b", buffering=0) as file:
        for bit in range(8 * start, 8 * len(data), 29):
            at = bit // 8
            os.pwrite(file.fileno(), bytes([data[at] ^ 1 << bit % 8]), at)
            missed += [] if verify_safetensors(path)[1] else [bit]
            os.pwrite(file.fileno(), data[at : at + 1], at)
    assert verify_safetensors(path) == (True, [])
    assert missed == []


@pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: data[:11], lambda _: b""])
def test_opening_a_cut_file_names_it(theirs, damage):
    theirs.write_bytes(damage(theirs.read_bytes()))
    with pytest.raises(DamageError, match=r"theirs\.safetensors: (is|the tensors) "):
        TensorReader(theirs)


def test_a_file_that_is_cut_while_it_is_read_is_named(theirs):
    reader = TensorReader(theirs)
    os.truncate(theirs, theirs.stat().st_size - 3)
    with pytest.raises(OSError, match="the file ends at byte"):
        reader.read(dict.fromkeys(reader.leaves))
    found = [str(problem) for problem in reader.damaged_files(list(reader.leaves))]
    assert len(found) == 1
    assert found[0].startswith("theirs.safetensors: is cut short: the tensors end at byte")


def test_a_file_that_vanishes_is_named(ours):
    reader = TensorReader(ours)
    (ours / "model-00001-of-00002.safetensors").unlink()
    found = reader.damaged_files(["embed", "layers.1.w"])
    assert [str(x) for x in found] == ["model-00001-of-00002.safetensors: the file is missing"]


def test_an_intact_file_is_not_to_blame(ours):
    reader = TensorReader(ours)
    assert reader.damaged_files(list(reader.leaves)) == []

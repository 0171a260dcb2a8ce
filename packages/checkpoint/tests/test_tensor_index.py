# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import os
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from dovetail_checkpoint.layout.tensor_index import find_files
from dovetail_checkpoint.layout.tensor_writer import TensorFiles
from dovetail_checkpoint.proof.digest import hex_digests

INDEX = "model.safetensors.index.json"
FILES = [f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)]


def arrays(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=(3, 5)).astype(np.float32) for name in ("a", "b", "c")}


def write(directory, seed: int) -> None:
    tensors = arrays(seed)
    leaves = {name: (x.shape, "float32") for name, x in tensors.items()}
    directory.mkdir()
    with TensorFiles(directory, leaves, file_bytes=60, metadata={}) as files:
        for name, x in tensors.items():
            files.write(name, (0, 0), x)
        files.finish({name: hex_digests([x])[0] for name, x in tensors.items()})


@pytest.fixture
def ours(tmp_path):
    """An export of three files with an index."""
    write(tmp_path / "ours", 0)
    return tmp_path / "ours"


@pytest.fixture
def theirs(tmp_path):
    """The same from the format's library, with an index as other tools write it."""
    directory = tmp_path / "theirs"
    directory.mkdir()
    for file, (name, x) in zip(FILES, arrays(0).items(), strict=True):
        save_file({name: x}, directory / file)
    document = {
        "metadata": {"total_size": 180.0},
        "weight_map": dict(zip("abc", FILES, strict=True)),
    }
    (directory / INDEX).write_text(json.dumps(document, indent=2) + "\n")
    return directory


def change_index(directory, change) -> None:
    document = json.loads((directory / INDEX).read_text())
    change(document)
    (directory / INDEX).write_text(json.dumps(document))


def wheres(path) -> list[str]:
    return [problem.where for problem in find_files(path).problems]


def test_ours_is_proved(ours):
    files = find_files(ours)
    assert files.problems == ()
    assert files.proved
    assert files.file_of == dict(zip("abc", FILES, strict=True))
    assert find_files(ours / INDEX) == files


def test_one_file_of_ours_proves_itself(ours):
    files = find_files(ours / FILES[1])
    assert (files.proved, files.file_of) == (True, {"b": FILES[1]})


def test_theirs_is_read_unproved(theirs):
    files = find_files(theirs)
    assert files.problems == ()
    assert not files.proved
    assert files.file_of == dict(zip("abc", FILES, strict=True))


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_a_missing_file_is_named(kind, request):
    directory = request.getfixturevalue(kind)
    (directory / FILES[1]).unlink()
    assert wheres(directory) == [FILES[1]]


def test_a_missing_file_is_named_without_an_index(theirs):
    (theirs / INDEX).unlink()
    (theirs / FILES[1]).unlink()
    assert wheres(theirs) == [FILES[1]]


@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_swapped_files_are_named(kind, request):
    directory = request.getfixturevalue(kind)
    (directory / FILES[0]).rename(directory / "aside")
    (directory / FILES[2]).rename(directory / FILES[0])
    (directory / "aside").rename(directory / FILES[2])
    assert set(wheres(directory)) == {FILES[0], FILES[2]}


def test_a_whole_file_of_another_export_is_named(ours, tmp_path):
    write(tmp_path / "other", 1)
    shutil.copy(tmp_path / "other" / FILES[1], ours / FILES[1])
    assert wheres(ours) == [FILES[1]]


def test_a_file_of_the_library_in_ours_is_named(ours, theirs):
    shutil.copy(theirs / FILES[1], ours / FILES[1])
    assert wheres(ours) == [FILES[1]]


def test_the_lost_index_of_ours_is_a_problem(ours):
    (ours / INDEX).unlink()
    assert wheres(ours) == ["*.safetensors.index.json"]
    assert not find_files(ours).proved


@pytest.mark.thorough
def test_flipped_bits_all_over_our_index_are_found(ours):
    data = (ours / INDEX).read_bytes()
    missed = []
    with open(ours / INDEX, "r+b", buffering=0) as file:
        for bit in range(0, 8 * len(data), 11):
            at = bit // 8
            os.pwrite(file.fileno(), bytes([data[at] ^ 1 << bit % 8]), at)
            missed += [] if find_files(ours).problems else [bit]
            os.pwrite(file.fileno(), data[at : at + 1], at)
    assert find_files(ours).proved
    assert missed == []


@pytest.mark.parametrize("key", ["dovetail.sha256", "dovetail.headers"])
def test_half_a_proof_is_a_problem(ours, key):
    change_index(ours, lambda document: document["metadata"].pop(key))
    assert wheres(ours) == [INDEX]


def test_an_index_that_lost_its_proof_is_a_problem(ours):
    change_index(ours, lambda document: document.pop("metadata"))
    assert set(wheres(ours)) == {INDEX}


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("weight_map"),
        lambda document: document.update(weight_map=[]),
        lambda document: document.update(metadata=3),
        lambda document: document["weight_map"].update(a="../model.safetensors"),
        lambda document: document["weight_map"].update(a=3),
    ],
)
def test_a_wrong_index_of_theirs_is_a_problem(theirs, change):
    change_index(theirs, change)
    assert wheres(theirs) == [INDEX]


def test_a_tensor_that_is_not_where_the_index_says_is_a_problem(theirs):
    change_index(theirs, lambda document: document["weight_map"].update(d=FILES[0]))
    [problem] = find_files(theirs).problems
    assert str(problem) == f"{FILES[0]}: has no tensor 'd', as it should"


def test_the_index_chooses_among_files(theirs):
    save_file(arrays(0), theirs / "consolidated.safetensors")
    assert find_files(theirs).file_of == dict(zip("abc", FILES, strict=True))


def test_a_tensor_in_two_files_is_refused(theirs):
    save_file(arrays(0), theirs / "consolidated.safetensors")
    (theirs / INDEX).unlink()
    with pytest.raises(ValueError, match=r"must lie in one file, got 'a' in .*give the path of"):
        find_files(theirs)


def test_two_indices_are_refused(theirs):
    shutil.copy(theirs / INDEX, theirs / "other.safetensors.index.json")
    with pytest.raises(ValueError, match=r"must hold one index, got .*give the path of one"):
        find_files(theirs)
    assert find_files(theirs / INDEX).problems == ()


def test_nothing_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must be safetensors files, got path=.*give a directory"):
        find_files(tmp_path)
    with pytest.raises(ValueError, match=r"must be safetensors files, got path="):
        find_files(tmp_path / "missing.safetensors")

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import errno
import itertools
import json
import resource

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from dovetail_checkpoint.layout import tensor_writer
from dovetail_checkpoint.layout.tensor_writer import TensorFiles
from dovetail_checkpoint.proof.digest import hex_digests


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {f"layers.{i}.w": rng.normal(size=(5, 7 + i)).astype(np.float32) for i in range(12)}
    found["b"] = rng.normal(size=(3, 2, 4)).astype(jnp.bfloat16)
    found["step"] = np.array(2**40 + 3)
    found["empty"] = np.zeros((0, 4), np.float16)
    return found


def leaves_of(tensors: dict[str, np.ndarray]) -> dict:
    return {name: (array.shape, str(array.dtype)) for name, array in tensors.items()}


def digests_of(tensors: dict[str, np.ndarray]) -> dict[str, str]:
    return dict(zip(tensors, hex_digests(list(tensors.values())), strict=True))


def opened(directory, tensors, *, file_bytes=10**9, metadata=None) -> TensorFiles:
    directory.mkdir()
    leaves = leaves_of(tensors)
    return TensorFiles(directory, leaves, file_bytes=file_bytes, metadata=metadata or {})


def write(directory, tensors, **options) -> None:
    with opened(directory, tensors, **options) as files:
        for name, array in tensors.items():
            files.write(name, (0,) * array.ndim, array)
        files.finish(digests_of(tensors))


def loaded(directory) -> dict[str, np.ndarray]:
    found = {}
    for path in directory.glob("*.safetensors"):
        found |= load_file(path)
    return found


def assert_same(found: dict, want: dict) -> None:
    assert found.keys() == want.keys()
    for name, array in want.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


def test_one_file_without_an_index(tmp_path):
    write(tmp_path / "out", arrays(), metadata={"who": "me"})
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]
    assert_same(loaded(tmp_path / "out"), arrays())
    with safe_open(tmp_path / "out" / "model.safetensors", "np") as file:
        metadata = file.metadata()
    assert (metadata["format"], metadata["who"]) == ("pt", "me")
    assert json.loads(metadata["dovetail.digests"]) == digests_of(arrays())


def test_several_files_and_their_index(tmp_path):
    out = tmp_path / "out"
    write(out, arrays(), file_bytes=700)
    files = sorted(path.name for path in out.glob("*.safetensors"))
    assert files == [f"model-{i:05d}-of-00006.safetensors" for i in range(1, 7)]
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in arrays().values())
    held = {name: file for file in files for name in load_file(out / file)}
    assert index["weight_map"] == held
    assert_same(loaded(out), arrays())


def test_files_hold_at_most_file_bytes_in_natural_order(tmp_path):
    out = tmp_path / "out"
    write(out, arrays(), file_bytes=700)
    sizes = [sum(x.nbytes for x in load_file(p).values()) for p in out.glob("*.safetensors")]
    assert max(sizes) <= 700
    weight_map = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    order = [weight_map[f"layers.{i}.w"] for i in range(12)]
    assert order == sorted(order)


def test_a_tensor_larger_than_a_file_has_one_of_its_own(tmp_path):
    write(tmp_path / "out", arrays(), file_bytes=1)
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == len(arrays())


def test_the_files_are_the_same_each_time(tmp_path):
    write(tmp_path / "a", arrays(), file_bytes=700)
    write(tmp_path / "b", dict(reversed(arrays().items())), file_bytes=700)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


@pytest.mark.parametrize("seed", range(3))
def test_regions_in_any_order_and_layout(tmp_path, seed):
    rng = np.random.default_rng(seed)
    tensors = arrays()
    parts = []
    for name, array in tensors.items():
        cuts = [sorted({0, n, int(rng.integers(0, n + 1))}) for n in array.shape]
        for corner in itertools.product(*(itertools.pairwise(cut) for cut in cuts)):
            place = tuple(slice(*extent) for extent in corner)
            parts.append((name, tuple(x.start for x in place), np.asarray(array[place])))
    with opened(tmp_path / "out", tensors, file_bytes=700) as files:
        for i in rng.permutation(len(parts)):
            name, offset, part = parts[i]
            files.write(name, offset, np.asfortranarray(part) if part.ndim else part)
        files.finish(digests_of(tensors))
    assert_same(loaded(tmp_path / "out"), tensors)


def test_a_forgotten_part_is_refused(tmp_path):
    tensors = arrays()
    with opened(tmp_path / "out", tensors) as files:
        for name, array in tensors.items():
            files.write(name, (0,) * array.ndim, array[1:] if name == "b" else array)
        with pytest.raises(
            RuntimeError, match=r"must be written once, got \['b'\] with \[8\] left"
        ):
            files.finish(digests_of(tensors))


def test_nobody_may_execute_the_files(tmp_path):
    write(tmp_path / "out", arrays(), file_bytes=700)
    modes = {path.stat().st_mode & 0o111 for path in (tmp_path / "out").iterdir()}
    assert modes == {0}


def test_a_full_disk_fails_when_the_files_are_opened(tmp_path):
    # Files may not grow beyond a limit, as on a full disk.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(
            OSError, match=r"out must take 40256 bytes, got .*; free space"
        ) as found:
            opened(tmp_path / "out", {"x": np.zeros((100, 100), np.float32)}).__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert found.value.errno == errno.EFBIG


def test_a_full_disk_is_told_while_writing_too(tmp_path, monkeypatch):
    # Where files cannot be allocated first, as on macOS.
    monkeypatch.delattr(tensor_writer.os, "posix_fallocate")
    monkeypatch.setattr(tensor_writer.os, "ftruncate", lambda file, size: None)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(OSError, match="free space, or give another directory"):
            write(tmp_path / "out", {"x": np.zeros((1 << 10, 1 << 10), np.float32)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

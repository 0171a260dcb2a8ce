# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays of every dtype survive a file, other tools read it, and neither way copies them all."""

import hashlib
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from dovetail_serve._safetensors import FormatError, read_header
from dovetail_serve.bundle import arrays as module
from dovetail_serve.bundle.arrays import (
    FORMAT_NAMES,
    MAX_HEADER_BYTES,
    STORED_AS,
    converted,
    map_arrays,
    places,
    stored,
    stored_dtype,
    unstored,
    write_arrays,
)


def mapped_arrays(path, dtypes):
    return map_arrays(path, places(path, dtypes))


def values(dtype, shape, seed=0):
    random = np.random.default_rng(seed)
    if dtype == "complex64":
        return np.asarray(random.normal(size=(*shape, 2)).view("complex128")[..., 0], dtype)
    return np.asarray(random.normal(size=shape) * 3).astype(jnp.dtype(dtype))


@pytest.mark.parametrize("dtype", [*FORMAT_NAMES, *STORED_AS])
def test_each_dtype_survives(dtype, tmp_path):
    shapes = {"scalar": (), "none": (0, 3), "odd": (3, 5), "aligned": (4, 16)}
    arrays = {name: values(dtype, shape, i) for i, (name, shape) in enumerate(shapes.items())}
    write_arrays(tmp_path / "f", arrays)
    mapped = mapped_arrays(tmp_path / "f", dict.fromkeys(arrays, dtype))
    for name, array in arrays.items():
        again = unstored(mapped[name], dtype)
        assert (again.dtype, again.shape) == (array.dtype, array.shape)
        assert again.tobytes() == array.tobytes()


def test_the_library_of_the_format_reads_the_file(tmp_path):
    arrays = {"a.b": values("float32", (3, 5)), "c": values("int4", (64,)), "d": np.int64(5)}
    assert arrays["c"].min() < 0
    write_arrays(tmp_path / "f", arrays)
    loaded = safetensors.numpy.load_file(tmp_path / "f")
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], np.asarray(array, loaded[name].dtype))


def test_digests_are_those_of_the_file(tmp_path):
    arrays = {"b": values("float32", (3, 5)), "a": values("float32", (16, 4), 1)}
    written = write_arrays(tmp_path / "f", arrays)
    data = (tmp_path / "f").read_bytes()
    start = read_header(tmp_path / "f").tensors["a"].start
    assert written.bytes == len(data)
    assert written.sha256 == hashlib.sha256(data).hexdigest()
    assert written.header == hashlib.sha256(data[:start]).hexdigest()
    assert list(written.arrays) == ["b", "a"]
    for name, array in arrays.items():
        assert written.arrays[name] == hashlib.sha256(array.tobytes()).hexdigest()


def test_arrays_of_whole_lines_are_aligned(tmp_path):
    arrays = {"a": values("int8", (3,)), "b": values("int8", (64,)), "c": values("int8", (128,))}
    write_arrays(tmp_path / "f", arrays)
    mapped = mapped_arrays(tmp_path / "f", dict.fromkeys(arrays, "int8"))
    assert [mapped[name].ctypes.data % 64 for name in "bc"] == [0, 0]


@pytest.mark.parametrize("form", ["fortran", "big-endian", "strided", "jax"])
def test_any_memory_layout_is_written_in_c_order(form, tmp_path):
    array = values("float32", (3, 6))
    given = {
        "fortran": np.asfortranarray(array),
        "big-endian": array.astype(">f4"),
        "strided": np.repeat(array, 2, axis=1)[:, ::2],
        "jax": jnp.asarray(array),
    }[form]
    write_arrays(tmp_path / "f", {"a": given})
    np.testing.assert_array_equal(mapped_arrays(tmp_path / "f", {"a": "float32"})["a"], array)


def test_arrays_are_not_all_in_memory_at_once(tmp_path):
    # Each is converted to the file's byte order, 1 MiB at a time.
    arrays = {f"a{i}": values("float32", (512, 512), i).astype(">f4") for i in range(8)}
    tracemalloc.start()
    try:
        write_arrays(tmp_path / "f", arrays)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 << 20  # one array, the next one, and what else Python needs


def test_the_file_is_mapped_and_cannot_be_written_through(tmp_path):
    write_arrays(tmp_path / "f", {"a": values("float32", (256, 256))})
    tracemalloc.start()
    try:
        array = mapped_arrays(tmp_path / "f", {"a": "float32"})["a"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < array.nbytes / 2
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_an_array_on_the_host_is_not_copied():
    array = values("float32", (8, 8))
    assert np.shares_memory(stored(array), array)
    placed = jnp.asarray(array)
    assert stored(placed).ctypes.data == placed.unsafe_buffer_pointer()


@pytest.mark.parametrize(
    ("dtypes", "message"),
    [
        ({"a": "int32"}, "tensor 'a' is F32, not int32"),
        ({"b": "float32"}, "has other arrays than the manifest: 'a'"),
        ({"a": "float32", "b": "float32"}, "has other arrays than the manifest: 'b'"),
    ],
)
def test_a_file_of_other_arrays_is_refused(dtypes, message, tmp_path):
    write_arrays(tmp_path / "f", {"a": values("float32", (3,))})
    with pytest.raises(FormatError, match=message):
        mapped_arrays(tmp_path / "f", dtypes)


def test_a_dtype_that_the_format_lacks_is_refused(tmp_path):
    with pytest.raises(TypeError, match="got dtype='complex128'; convert it, or split"):
        write_arrays(tmp_path / "f", {"a": np.zeros(3, "complex128")})
    assert not (tmp_path / "f").exists()
    assert stored_dtype("int4") == np.int8


@pytest.mark.parametrize("dtype", ["int2", "uint2"])
def test_a_dtype_that_no_program_can_have_is_refused_by_the_name_of_the_array(dtype):
    with pytest.raises(TypeError, match=f"the weight 'w' must .*, got dtype='{dtype}'; convert"):
        stored_dtype(dtype, "the weight 'w'")


def test_a_header_above_the_limit_is_neither_written_nor_read(tmp_path, monkeypatch):
    # A hole of the length that the header claims.
    with open(tmp_path / "large", "wb") as file:
        file.write((MAX_HEADER_BYTES - 7).to_bytes(8, "little"))
        file.truncate(MAX_HEADER_BYTES + 64)
    with pytest.raises(FormatError, match=f"has a header of {MAX_HEADER_BYTES + 1} bytes, and"):
        mapped_arrays(tmp_path / "large", {"a": "int8"})
    monkeypatch.setattr(module, "MAX_HEADER_BYTES", 64)
    with pytest.raises(ValueError, match="must fit in 64 bytes, got 128 for 1 arrays; stack"):
        write_arrays(tmp_path / "f", {"a" * 50: values("int8", (3,))})
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    ("dtype", "weights", "result"),
    [
        ("float32", "bfloat16", "bfloat16"),
        ("float64", "float16", "float16"),
        ("float8_e4m3fn", "bfloat16", "float8_e4m3fn"),
        ("int8", "bfloat16", "int8"),
        ("float32", None, "float32"),
    ],
)
def test_only_weights_of_16_bits_or_more_are_converted(dtype, weights, result):
    assert jax.numpy.dtype(converted(jnp.dtype(dtype), weights)).name == result

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import contextlib
import json
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_models.hf.safetensors import Pending, header, views, write


def pending(array):
    return Pending(array.dtype, array.shape, lambda: array)


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {
        "b.weight": rng.standard_normal((3, 5)).astype(np.float32),
        "a": rng.standard_normal(7).astype(np.float16),
        "none": np.zeros((0, 4), np.float32),
        "scalar": np.array(2.5, np.float32),
    }


def test_their_library_reads_what_we_write(arrays, tmp_path):
    half = arrays["b.weight"].astype(jnp.bfloat16)
    write(tmp_path / "x", {name: pending(a) for name, a in (arrays | {"half": half}).items()})
    found = safetensors.numpy.load_file(tmp_path / "x")
    assert found.keys() == arrays.keys() | {"half"}
    for name, array in (arrays | {"half": half}).items():
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_we_read_what_their_library_writes(arrays, tmp_path):
    safetensors.numpy.save_file(arrays, tmp_path / "x", metadata={"format": "pt"})
    specs = header(tmp_path / "x")
    assert specs.keys() == arrays.keys()
    for name, view in views(specs).items():
        assert view.dtype == arrays[name].dtype
        np.testing.assert_array_equal(view, arrays[name])


def test_a_header_of_any_length_is_read(tmp_path):
    # Other writers pad to no alignment at all; the views are then unaligned.
    data = np.arange(6, dtype=np.float32)
    for pad in range(5):
        entry = {"x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
        text = json.dumps(entry).encode() + b" " * pad
        path = tmp_path / f"{pad}"
        path.write_bytes(len(text).to_bytes(8, "little") + text + data.tobytes())
        view = views(header(path))["x"]
        np.testing.assert_array_equal(jax.device_put(view.T), data.reshape(2, 3).T)


def test_a_donated_parameter_never_reaches_the_file(tmp_path):
    array = np.arange(4096, dtype=np.float32)
    write(tmp_path / "x", {"x": pending(array)})
    before = (tmp_path / "x").read_bytes()
    loaded = jax.device_put(views(header(tmp_path / "x"))["x"])
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    np.testing.assert_array_equal(add(loaded), array + 1)
    assert (tmp_path / "x").read_bytes() == before


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_cut_or_altered_file_is_an_error_or_whole(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("cut") / "x"
    write(path, {"x": pending(np.ones((2, 3), np.float32))})
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ValueError, match="is cut short") as error:
        header(path)
    assert f"of {path.stat().st_size} bytes" in str(error.value)
    assert "fetch or save it again" in str(error.value)


def raw(path, header, data=b""):
    """A file of this header, a text or an object, and this data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype="F32", shape=(2, 3), offsets=(0, 24)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


LIES = {
    "fewer bytes than the shape": ({"x": entry(offsets=(0, 20))}, "'x' of F32 [2, 3] has 20 bytes"),
    "beyond the file": ({"x": entry(offsets=(8, 32))}, "'x' starts at byte"),
    "negative offset": ({"x": entry(shape=(2,), offsets=(-8, 0))}, "data_offsets [-8, 0]"),
    "backwards": ({"x": entry(offsets=(24, 0))}, "has -24 bytes"),
    "three offsets": ({"x": entry(offsets=(0, 24, 24))}, "data_offsets [0, 24, 24]"),
    "no offsets": ({"x": {"dtype": "F32", "shape": [2]}}, "without dtype, shape and data_offsets"),
    "a list": ({"x": ["F32"]}, "without dtype, shape and data_offsets"),
    "unknown dtype": ({"x": entry("F33")}, "'x' has dtype 'F33'"),
    "dtype of a list": ({"x": entry(["F32"])}, "'x' has dtype ['F32']"),
    "negative size": ({"x": entry(shape=(-2, -3))}, "shape [-2, -3]"),
    "size that is true": ({"x": entry(shape=(True, 6))}, "shape [True, 6]"),
    "size that is a float": ({"x": entry(shape=(2.0, 3))}, "shape [2.0, 3]"),
    "size that is a text": ({"x": {**entry(), "shape": "23"}}, "shape '23'"),
    "65 dimensions": ({"x": entry(shape=(1,) * 63 + (2, 3))}, "shape [1, 1,"),
    "larger than memory": ({"x": entry(shape=(2**40, 2**30, 0), offsets=(0, 0))}, "than memory"),
    "half a byte": ({"x": entry("F4", (3,), (0, 1))}, "'x' of F4 [3] has 1 bytes"),
    "overlap": ({"x": entry(), "y": entry(shape=(1,), offsets=(20, 24))}, "'y' starts at byte"),
    "hole before": ({"x": entry(shape=(5,), offsets=(4, 24))}, "'x' starts at byte"),
    "hole after": ({"x": entry(shape=(5,), offsets=(0, 20))}, "the tensors end at byte"),
    "metadata of numbers": ({"__metadata__": {"a": 1}, "x": entry()}, "not an object of texts"),
    "metadata of a list": ({"__metadata__": ["a"], "x": entry()}, "not an object of texts"),
    "a list of tensors": ([entry()], "the JSON is a list, not an object"),
    "not JSON": (b'{"x": ', "Expecting value"),
    "UTF-16": ('{"x": 1}'.encode("utf-16"), "'utf-8' codec"),
    "nested": (b'{"x":' + b"[" * 100_000, "nested too deeply"),
    "long number": (b'{"x":' + b"9" * 5000 + b"}", "integer string conversion"),
    "duplicate keys": (
        b'{"x": {"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}, "x": {}}',
        "the key 'x' comes twice",
    ),
}


@pytest.mark.parametrize("header_of, told", LIES.values(), ids=LIES)
def test_a_header_that_lies_is_an_error(tmp_path, header_of, told):
    path = raw(tmp_path / "x", header_of, bytes(24))
    with pytest.raises(ValueError, match="A safetensors file must be whole") as error:
        header(path)
    assert told in str(error.value)
    assert f"got {path} of {path.stat().st_size} bytes" in str(error.value)
    assert "fetch or save it again" in str(error.value)


@pytest.mark.parametrize("length", [100, 2**63, 2**64 - 1])
def test_a_header_longer_than_its_file_is_never_allocated(tmp_path, length):
    path = tmp_path / "x"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    tracemalloc.start()
    with pytest.raises(ValueError, match=f"a header of {length}"):
        header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The message and the buffer of the file.
    assert peak < 500_000


def test_a_header_beyond_the_bound_of_the_format_is_refused(tmp_path):
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.write((100_000_001).to_bytes(8, "little"))
        file.truncate(200_000_000)  # sparse: no bytes are written
    with pytest.raises(ValueError, match="a header of 100000001"):
        header(path)


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_flipped_byte_is_an_error_or_another_tensor(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("flip") / "x"
    write(path, {"x": pending(np.ones((2, 3), np.float32))})
    whole = bytearray(path.read_bytes())
    whole[data.draw(st.integers(0, 100))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    with contextlib.suppress(ValueError):
        assert all(spec.stop <= len(whole) for spec in header(path).values())


def test_every_dtype_of_the_format_is_parsed(tmp_path):
    bits_of = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8}
    bits_of |= {"F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16}
    bits_of |= {"I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64}
    bits_of |= {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
    entries, end = {}, 0
    for name, bits in bits_of.items():
        start, end = end, end + 4 * bits // 8
        entries[name] = entry(name, (1, 4), (start, end))
    path = raw(tmp_path / "x", entries, bytes(end))
    found = header(path)
    assert {name: spec.dtype for name, spec in found.items()} == {n: n for n in bits_of}
    # The format's own library reads the same file.
    with safetensors.safe_open(path, "numpy") as theirs:
        assert set(theirs.keys()) == set(bits_of)


def test_a_dtype_that_is_no_parameters_is_refused(tmp_path):
    safetensors.numpy.save_file({"x": np.arange(3)}, tmp_path / "x")
    with pytest.raises(ValueError, match=r"must be of dtype \['BF16', 'F16', 'F32'\]") as error:
        views(header(tmp_path / "x"))
    assert "dtype=I64" in str(error.value)
    assert "Convert the file first" in str(error.value)

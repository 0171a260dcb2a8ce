# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

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
    with pytest.raises(ValueError, match="cut short or of another format") as error:
        header(path)
    assert f"of {path.stat().st_size} bytes" in str(error.value)
    assert "fetch or save it again" in str(error.value)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 20]},
        {"dtype": "F32", "shape": [2, 3], "data_offsets": [8, 32]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F32", "shape": [2]},
        ["F32"],
    ],
)
def test_a_header_that_lies_is_an_error(tmp_path, entry):
    text = json.dumps({"x": entry}).encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + bytes(24))
    with pytest.raises(ValueError, match="must hold a header of JSON entries"):
        header(tmp_path / "x")


def test_a_dtype_that_is_no_parameters_is_refused(tmp_path):
    safetensors.numpy.save_file({"x": np.arange(3)}, tmp_path / "x")
    with pytest.raises(ValueError, match=r"must be of dtype \['BF16', 'F16', 'F32'\]") as error:
        views(header(tmp_path / "x"))
    assert "dtype=I64" in str(error.value)
    assert "Convert the file first" in str(error.value)

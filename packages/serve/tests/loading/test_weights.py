# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Weights are read or mapped, are shared between models, and are checked in memory."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_serve import BundleError, IntegrityError, Platform, Tensor, export, load, testing
from dovetail_serve.bundle.manifest import WEIGHTS


def save(path, *, platform="cpu", seed=0, **changes):
    random = np.random.default_rng(seed)
    weights = {
        "kernel": random.normal(size=(32, 24)).astype("float32"),
        "bias": random.normal(size=5).astype("float32"),
        "codes": random.integers(-8, 8, size=(16, 8)).astype(jnp.int4),
    } | changes

    def fn(p, *, x):
        y = x @ p["kernel"].astype("float32")
        return {"y": y.at[:, :5].add(p["bias"]), "z": x[:, :16] @ p["codes"].astype("float32")}

    export(
        fn,
        weights,
        inputs={"x": Tensor(("batch", 32), "float32")},
        example={"x": random.normal(size=(3, 32)).astype("float32")},
        platforms=[platform],
        batch_sizes=(1, 4),
    ).save(path)
    return weights


def on_devices(model):
    return model._weights


def mapped(file):
    """Returns the address ranges at which a file is mapped into this process."""
    lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(file) in line]
    return [tuple(int(x, 16) for x in re.match(r"(\w+)-(\w+)", line).groups()) for line in lines]


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc/self/maps")
def test_on_a_cpu_the_map_is_the_buffer(tmp_path):
    save(tmp_path / "1")
    arrays = on_devices(load(tmp_path / "1", map_weights=True))
    ranges = mapped(tmp_path / "1" / WEIGHTS)
    assert any(start <= arrays["kernel"].unsafe_buffer_pointer() < stop for start, stop in ranges)


def test_values_are_those_of_the_export(tmp_path):
    weights = save(tmp_path / "1")
    arrays = on_devices(load(tmp_path / "1"))
    for name, array in weights.items():
        np.testing.assert_array_equal(np.asarray(arrays[name]), array)


@pytest.mark.thorough
def test_equal_arrays_of_another_model_are_shared(tmp_path):
    kernel = np.random.default_rng(9).normal(size=(32, 24)).astype("float32")
    save(tmp_path / "1")
    save(tmp_path / "2", kernel=kernel)
    save(tmp_path / "3", platform=Platform(name="cpu", layouts={"kernel": (1, 0)}))
    one = load(tmp_path / "1")
    two = load(tmp_path / "2", share=[one])
    three = load(tmp_path / "3", share=[one, two])
    shared = {name: on_devices(one)[name] is array for name, array in on_devices(two).items()}
    assert shared == {"kernel": False, "bias": True, "codes": True}
    # Another layout is another placement.
    shared = {name: on_devices(one)[name] is array for name, array in on_devices(three).items()}
    assert shared == {"kernel": False, "bias": True, "codes": True}
    x = np.random.default_rng(1).normal(size=(2, 32)).astype("float32")
    np.testing.assert_array_equal(three(x=x)["z"], one(x=x)["z"])
    np.testing.assert_allclose(two(x=x)["y"][:, 5:], (x @ kernel)[:, 5:], rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
def test_converted_arrays_are_shared_only_with_converted_ones(tmp_path):
    save(tmp_path / "1")
    save(tmp_path / "2", platform=Platform(name="cpu", weights="bfloat16"))
    one = load(tmp_path / "1")
    two = load(tmp_path / "2", share=[one])
    assert on_devices(two)["codes"] is on_devices(one)["codes"]
    assert on_devices(two)["kernel"] is not on_devices(one)["kernel"]


@pytest.mark.thorough
def test_weights_are_converted_on_the_device(tmp_path):
    weights = save(tmp_path / "1", platform=Platform(name="cpu", weights="bfloat16"))
    model = load(tmp_path / "1")
    dtypes = {name: array.dtype.name for name, array in on_devices(model).items()}
    assert dtypes == {"kernel": "bfloat16", "bias": "bfloat16", "codes": "int4"}
    text = model.compile(4).as_text()
    assert "bf16[32,24]" in text
    np.testing.assert_array_equal(
        np.asarray(on_devices(model)["kernel"]), weights["kernel"].astype(jnp.bfloat16)
    )
    assert model.self_test().outputs["y"].tolerance == 3e-2
    with pytest.raises(BundleError, match=r"got 'bias' of bfloat16, stored as float32; a platfor"):
        model.verify()


@pytest.mark.thorough
def test_layouts_are_applied_and_visible(tmp_path):
    save(tmp_path / "0")
    save(tmp_path / "1", platform=Platform(name="cpu", layouts={"k*": (1, 0)}))
    plain, model = load(tmp_path / "0"), load(tmp_path / "1")
    x = np.random.default_rng(1).normal(size=(4, 32)).astype("float32")
    assert on_devices(model)["kernel"].format.layout.major_to_minor == (1, 0)
    layout = re.search(r"entry_computation_layout=.*", model.compile(4).as_text())[0]
    assert "f32[32,24]{0,1}" in layout
    assert "f32[32,24]{0,1}" not in plain.compile(4).as_text().splitlines()[0]
    # The same products in another order.
    np.testing.assert_allclose(model(x=x)["y"], plain(x=x)["y"], rtol=1e-5, atol=1e-5)
    assert model.verify() == 3


@pytest.mark.thorough
def test_damage_in_memory_is_named(tmp_path):
    testing.save_mlp(tmp_path / "1", widths=(16, 8, 4), batch_sizes=(1,))
    model = load(tmp_path / "1", map_weights=True)
    assert model.verify() == 2
    name = "layers.1.kernel"
    value = np.asarray(on_devices(model)[name]).copy()
    (tmp_path / "1" / WEIGHTS).chmod(0o644)  # weights are read-only
    with open(tmp_path / "1" / WEIGHTS, "r+b") as file:
        at = file.read().index(value.tobytes())
        file.seek(at + 5)
        file.write(bytes([value.tobytes()[5] ^ 16]))
    # The map is the memory, so this is a flipped bit in it.
    with pytest.raises(
        IntegrityError, match=r"'layers\.1\.kernel' in memory must have its digest"
    ) as e:
        model.verify()
    assert (e.value.file, e.value.array) == (WEIGHTS, name)


@pytest.mark.thorough
@pytest.mark.parametrize("empty", [{}, {"w": np.zeros((0, 3), "float32")}])
def test_a_model_without_weights_is_loaded(tmp_path, empty):
    export(
        lambda p, *, x: {"y": jnp.sort(x, axis=1)},
        empty,
        inputs={"x": Tensor(("batch", 4), "int32")},
        example={"x": np.array([[3, 1, 2, 5], [0, 9, 8, 1]], "int32")},
        platforms=["cpu"],
        batch_sizes=(2,),
    ).save(tmp_path / "1")
    model = load(tmp_path / "1")
    assert model(x=np.array([[4, 3, 2, 1]], "int32"))["y"].tolist() == [[1, 2, 3, 4]]
    assert model.verify() == len(empty)


@pytest.mark.thorough
def test_python_numbers_and_keys_are_weights(tmp_path):
    key = jax.random.key(5)

    def fn(p, *, x):
        return {"y": x * p["scale"] + jax.random.normal(p["key"], (3,))}

    export(
        fn,
        {"scale": 2.5, "key": key},
        inputs={"x": Tensor(("batch", 3), "float32")},
        example={"x": np.random.default_rng(0).normal(size=(2, 3)).astype("float32")},
        platforms=["cpu"],
        batch_sizes=(1,),
    ).save(tmp_path / "1")
    x = np.random.default_rng(1).normal(size=(1, 3)).astype("float32")
    noise = np.asarray(jax.random.normal(key, (3,)), "float64")
    # One rounding each of a product and a sum.
    np.testing.assert_allclose(
        load(tmp_path / "1")(x=x)["y"], x * 2.5 + noise, rtol=1e-6, atol=1e-6
    )

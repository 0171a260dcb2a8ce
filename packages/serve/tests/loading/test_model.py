# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A loaded model computes what NumPy says for any number of rows, in any thread, on its devices."""

import dataclasses
import inspect
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_serve import (
    BundleError,
    ExecutionError,
    HostFunction,
    IntegrityError,
    Platform,
    RequestError,
    Tensor,
    export,
    load,
    testing,
    verify,
)
from dovetail_serve.bundle.manifest import GOLDEN

PROGRAMS = Path(__file__).parents[1] / "programs"
# float32 sums of at most 6 terms of size 3, and tanh.
CLOSE = {"rtol": 1e-5, "atol": 2e-6}


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    path = tmp_path_factory.mktemp("repo") / "1"
    return path, testing.save_mlp(path, batch_sizes=(1, 3, 8))


def rows(count, *, width=6, seed=1):
    return np.random.default_rng(seed + count).normal(size=(count, width)).astype("float32")


def run(program, *arguments, **environment):
    # Without the variables by which this suite's own process was set up.
    return subprocess.run(
        [sys.executable, PROGRAMS / program, *map(str, arguments)],
        env={"JAX_PLATFORMS": "cpu", "PATH": os.environ["PATH"]} | environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@pytest.mark.thorough
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9, 19])
def test_any_number_of_rows_equals_numpy(mlp, count):
    path, expected = mlp
    y = load(path)(x=rows(count))["y"]
    np.testing.assert_allclose(y, expected(rows(count)), **CLOSE)
    assert y.flags.owndata
    assert y.flags.writeable
    assert y.dtype == np.float32


def test_no_rows_give_empty_outputs_and_run_nothing(mlp):
    model = load(mlp[0], verify="none")
    y = model(x=rows(0))["y"]
    assert (y.shape, y.dtype) == ((0, 3), np.float32)
    assert model._compiled == {}


def test_arrays_of_jax_are_taken_and_left_alone(mlp):
    path, expected = mlp
    model = load(path)
    for count in (3, 5):
        x = jnp.asarray(rows(count))
        np.testing.assert_allclose(model(x=x)["y"], expected(rows(count)), **CLOSE)
        np.testing.assert_array_equal(x, rows(count))


def test_results_stay_when_the_model_runs_again(mlp):
    model = load(mlp[0])
    first = model(x=rows(3))["y"]
    before = first.copy()
    for seed in range(20):
        model(x=rows(3, seed=seed))
    np.testing.assert_array_equal(first, before)


def test_wrong_inputs_are_refused_before_anything_runs(mlp):
    model = load(mlp[0], verify="none")
    with pytest.raises(RequestError, match=r"got float64\[3, 6\]; write x\.astype\('float32'\)"):
        model(x=rows(3).astype("float64"))
    with pytest.raises(RequestError, match=r"must be named x, got X; add x"):
        model(X=rows(3))
    assert model._compiled == {}


def test_threads_call_one_model_and_compile_once(mlp):
    path, expected = mlp
    model = load(path, verify="none")
    barrier = threading.Barrier(8)

    def call(seed):
        barrier.wait()
        results = [model(x=rows(1 + (seed + i) % 9, seed=seed))["y"] for i in range(9)]
        return results, model.compile(8)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(call, range(8)))
    for seed, (results, _) in enumerate(answers):
        for i, y in enumerate(results):
            x = rows(1 + (seed + i) % 9, seed=seed)
            np.testing.assert_allclose(y, expected(x), **CLOSE)
    assert len({id(program) for _, program in answers}) == 1


@pytest.mark.thorough
def test_racing_loads_all_work(mlp):
    path, expected = mlp
    barrier = threading.Barrier(16)

    def call(seed):
        barrier.wait()
        return load(path, verify="files")(x=rows(1, seed=seed))["y"]

    with ThreadPoolExecutor(16) as pool:
        for seed, y in enumerate(pool.map(call, range(16))):
            np.testing.assert_allclose(y, expected(rows(1, seed=seed)), **CLOSE)


def test_the_self_test_passes_and_says_by_how_much(mlp):
    result = load(mlp[0], verify="none").self_test()
    assert (result.platform, result.stored_platform) == ("cpu", "cpu")
    assert result.outputs["y"].difference <= result.outputs["y"].tolerance == 1e-4


@pytest.mark.capability("a self test on the device")
def test_wrong_results_are_refused_though_every_byte_is_right(tmp_path):
    w = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    bundle = export(
        lambda p, *, x: {"y": x @ p["w"]},
        {"w": w},
        inputs={"x": Tensor(("batch", 4), "float32")},
        example={"x": rows(3, width=4)},
        platforms=["cpu"],
        batch_sizes=(1, 2),
    )
    inputs, outputs = bundle.golden
    wrong = np.array(outputs["y"])
    wrong[1, 2] += 0.01
    dataclasses.replace(bundle, golden=(inputs, {"y": wrong})).save(tmp_path / "1")
    verify(tmp_path / "1")
    with pytest.raises(IntegrityError, match="output 'y' of the example must be within") as caught:
        load(tmp_path / "1")
    assert (caught.value.file, caught.value.array) == (GOLDEN, "outputs.y")
    load(tmp_path / "1", verify="files")


def test_damage_is_found_unless_it_is_not_asked_for(mlp, tmp_path):
    testing.save_mlp(tmp_path / "1")
    file = tmp_path / "1" / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 128
    file.chmod(0o644)  # weights are read-only
    file.write_bytes(data)
    for level in ("full", "files"):
        with pytest.raises(IntegrityError, match="array 'layers"):
            load(tmp_path / "1", verify=level)
    load(tmp_path / "1", verify="none")


def test_an_unknown_level_is_refused(mlp):
    with pytest.raises(ValueError, match="one of 'full', 'files', 'none', got verify='all'; write"):
        inspect.unwrap(load)(mlp[0], verify="all")  # without the suite's own check of types


def test_no_devices_are_refused(mlp):
    with pytest.raises(ValueError, match=r"must not be empty, got devices=\[\]; leave it out"):
        load(mlp[0], devices=[])


def test_a_bundle_for_other_platforms_is_refused(tmp_path):
    export(
        lambda p, *, x: {"y": x * 2},
        {},
        inputs={"x": Tensor(("batch",), "float32")},
        example={"x": rows(3)[:, 0]},
        platforms=["tpu"],
        batch_sizes=(1,),
    ).save(tmp_path / "1")
    with pytest.raises(BundleError, match="this platform, 'cpu', and has tpu; export it for cpu"):
        load(tmp_path / "1")


def test_without_a_batch_axis_the_shape_is_fixed(tmp_path):
    export(
        lambda p, *, x, n: {"y": x.sum(0) * n, "n": n + 1},
        {},
        inputs={"x": Tensor((3, 5), "float32"), "n": Tensor((), "int32")},
        example={"x": rows(3, width=5), "n": np.array(3, "int32")},
        platforms=["cpu"],
    ).save(tmp_path / "1")
    model = load(tmp_path / "1")
    assert model.batch_sizes == ()
    result = model(x=rows(3, width=5), n=np.array(7, "int32"))
    np.testing.assert_allclose(result["y"], rows(3, width=5).sum(0, "float64") * 7, **CLOSE)
    assert result["n"] == 8
    with pytest.raises(RequestError, match=r"float32\[3, 5\], got float32\[4, 5\]"):
        model(x=rows(4, width=5), n=np.array(7, "int32"))


WORDS = [b"no", b"yes", b"a\0b"]


def host_bundle(path):
    """Texts to numbers, doubled by the program, and back to texts."""
    export(
        lambda p, *, ids: {"score": ids.astype("float32") * p["scale"]},
        {"scale": 2.0},
        inputs={"ids": Tensor(("batch",), "int32")},
        example={"ids": np.array([0, 2, 1], "int32")},
        platforms=["cpu"],
        batch_sizes=(2,),
        before=HostFunction("encode", {"text": Tensor(("batch",), "bytes")}),
        after=HostFunction(
            "label",
            {"label": Tensor(("batch",), "bytes"), "score": Tensor(("batch",), "float32")},
        ),
        assets={"words": b"|".join(WORDS)},
    ).save(path)


def encode(arrays, assets):
    words = assets["words"].read_bytes().split(b"|")
    return {"ids": np.array([words.index(text) for text in arrays["text"]], "int32")}


def label(arrays, assets):
    labels = np.array([b"score %g" % score for score in arrays["score"]], object)
    return {"label": labels, "score": arrays["score"]}


def test_host_functions_run_before_and_after(tmp_path):
    host_bundle(tmp_path / "1")
    model = load(tmp_path / "1", functions={"encode": encode, "label": label})
    assert list(model.signature.inputs) == ["text"]
    result = model(text=np.array([b"yes", b"a\0b", b"no"], object))
    assert result["label"].tolist() == [b"score 2", b"score 4", b"score 0"]
    assert result["score"].tolist() == [2, 4, 0]
    assert result["score"].flags.writeable
    empty = model(text=np.array([], object))
    assert {name: (a.shape, a.dtype.kind) for name, a in empty.items()} == {
        "label": ((0,), "O"),
        "score": ((0,), "f"),
    }


def test_missing_and_wrong_host_functions_are_refused(tmp_path):
    host_bundle(tmp_path / "1")
    with pytest.raises(
        ValueError, match=r"function 'label', got encode; give f.*--function label="
    ):
        load(tmp_path / "1", functions={"encode": encode})
    text = np.array([b"yes"], object)
    wrong = load(
        tmp_path / "1",
        functions={"encode": lambda arrays, assets: {"ids": np.zeros(1)}, "label": label},
    )
    with pytest.raises(ExecutionError, match=r"'encode' has returned other arrays .*float64\[1\]"):
        wrong(text=text)
    wrong = load(
        tmp_path / "1", functions={"encode": encode, "label": lambda arrays, assets: arrays}
    )
    with pytest.raises(ExecutionError, match=r"'label' has returned other arrays .*add label"):
        wrong(text=text)


DTYPES = ["bool", "int4", "uint4", "int8", "uint8", "int16", "uint32", "float16", "bfloat16"]
DTYPES += ["float32", "float8_e4m3fn", "float8_e5m2", "complex64"]


def values(dtype, shape, seed):
    array = np.random.default_rng(seed).normal(size=shape) * 3
    return np.asarray(array > 0 if dtype == "bool" else array).astype(jnp.dtype(dtype))


@pytest.mark.thorough
def test_each_dtype_goes_in_and_out(tmp_path):
    weights = {dtype: values(dtype, 3, 0) for dtype in DTYPES}

    def fn(p, **inputs):
        return {
            name: jnp.concatenate([x, jnp.broadcast_to(p[name], x.shape)], axis=1)
            for name, x in inputs.items()
        }

    export(
        fn,
        weights,
        inputs={dtype: Tensor(("batch", 3), dtype) for dtype in DTYPES},
        example={dtype: values(dtype, (2, 3), 1) for dtype in DTYPES},
        platforms=["cpu"],
        batch_sizes=(1, 4),
    ).save(tmp_path / "1")
    inputs = {dtype: values(dtype, (3, 3), 2) for dtype in DTYPES}
    outputs = load(tmp_path / "1")(**inputs)
    for dtype in DTYPES:
        repeated = np.broadcast_to(weights[dtype], (3, 3))
        assert outputs[dtype].dtype == weights[dtype].dtype
        assert outputs[dtype].tobytes() == np.concatenate([inputs[dtype], repeated], 1).tobytes()


@pytest.mark.thorough
def test_64_bit_types_are_kept_where_they_are_not_enabled(tmp_path):
    w = np.random.default_rng(0).normal(size=(4, 3))
    with jax.enable_x64(True):
        export(
            lambda p, *, x, n: {"y": x @ p["w"], "n": n + p["n"]},
            {"w": w, "n": np.int64(2**40)},
            inputs={"x": Tensor(("batch", 4), "float64"), "n": Tensor(("batch",), "int64")},
            example={"x": rows(2, width=4).astype("float64"), "n": np.array([1, -5])},
            platforms=["cpu"],
            batch_sizes=(1, 4),
        ).save(tmp_path / "1")
    assert not jax.config.jax_enable_x64
    model = load(tmp_path / "1")
    x = np.random.default_rng(1).normal(size=(3, 4))
    result = model(x=x, n=np.array([1, 2, -(2**50)]))
    # Two orders of a sum of 4 terms in float64.
    np.testing.assert_allclose(result["y"], x @ w, rtol=1e-14, atol=1e-15)
    assert result["n"].tolist() == [2**40 + 1, 2**40 + 2, 2**40 - 2**50]
    assert model.self_test().outputs["y"].tolerance == 1e-9
    assert not jax.config.jax_enable_x64


def test_a_bundle_of_32_bits_loads_where_64_are_enabled(mlp):
    path, expected = mlp
    with jax.enable_x64(True):
        model = load(path)
        y = model(x=rows(5))["y"]
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, expected(rows(5)), **CLOSE)


def compiled_text(path, **options):
    export(
        lambda p, *, x: {"y": jnp.tanh(x * 2 + 1).sum(1)},
        {},
        inputs={"x": Tensor(("batch", 6), "float32")},
        example={"x": rows(2)},
        platforms=[Platform(name="cpu", compiler_options=options)],
        batch_sizes=(1,),
    ).save(path)
    return load(path).compile(1).as_text()


@pytest.mark.thorough
def test_compiler_options_are_applied(tmp_path):
    # Without its passes the compiler leaves the calls of the traced function where they were.
    plain = compiled_text(tmp_path / "1")
    unoptimized = compiled_text(tmp_path / "2", xla_disable_all_hlo_passes=True)
    assert "call(" in unoptimized
    assert "call(" not in plain


@pytest.mark.thorough
def test_four_devices_equal_one(tmp_path):
    x = rows(6)
    np.save(tmp_path / "x.npy", x)
    flags = "--xla_force_host_platform_device_count=4"
    result = json.loads(
        run("sharded_model.py", tmp_path / "1", tmp_path / "x.npy", XLA_FLAGS=flags)
    )
    random = np.random.default_rng(0)
    up, down = random.normal(size=(6, 8)), random.normal(size=(8, 5))
    expected = np.tanh(x.astype("float64") @ up) @ down + 0.5
    # float32 sums of 8 terms, in the order of the devices.
    np.testing.assert_allclose(result["y"], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(result["placed"], expected[:4], rtol=1e-5, atol=1e-5)
    assert result["shards"] == {"up": [[6, 2]] * 4, "down": [[4, 5]] * 4, "bias": [[]] * 4}
    assert (result["verified"], result["devices"]) == (3, 4)
    assert "was exported for 4 devices, got 3; load it on a host that has" in result["refused"]
    with pytest.raises(BundleError, match="was exported for 4 devices, got 1"):
        load(tmp_path / "1", devices=jax.devices()[:1])


@pytest.mark.capability("models without their source")
def test_flax_is_not_needed(mlp, tmp_path):
    path, expected = mlp
    np.save(tmp_path / "x.npy", rows(5))
    run("without_flax.py", path, tmp_path / "x.npy", tmp_path / "y.npy")
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected(rows(5)), **CLOSE)

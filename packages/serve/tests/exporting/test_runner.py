# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The function runs here as a loaded bundle runs it, and a run that does not end is given up."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_serve import Platform
from dovetail_serve.exporting.runner import Runner, UnfinishedError

PROGRAMS = Path(__file__).parents[1] / "programs"
X = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
CPU = [Platform(name="cpu")]


def product(weights, arrays):
    return {"y": arrays["x"] * weights["w"].astype("float32")}


@pytest.mark.thorough
def test_weights_are_converted_for_this_platform_alone():
    weights = {"w": jnp.asarray(X)}
    rounded = X * X.astype(jnp.bfloat16).astype("float32")
    here = Runner(product, weights, [Platform(name="cpu", weights="bfloat16")])
    np.testing.assert_array_equal(here({"x": X})["y"], rounded)
    elsewhere = Runner(product, weights, [Platform(name="tpu", weights="bfloat16")])
    np.testing.assert_array_equal(elsewhere({"x": X})["y"], X * X)


def test_compiler_options_of_this_platform_are_applied():
    platform = Platform(name="cpu", compiler_options={"xla_no_such_option": True})
    run = Runner(lambda weights, arrays: {"y": arrays["x"]}, {}, [platform])
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
        run({"x": X})


def test_each_shape_is_compiled_once():
    traces = []

    def flow(weights, arrays):
        traces.append(arrays["x"].shape)
        return {"y": arrays["x"]}

    run = Runner(flow, {}, CPU)
    for rows in (2, 3, 2, 3):
        run({"x": X[:rows]})
    assert traces == [(2, 3), (3, 3)]


def test_options_of_jax_are_those_of_the_caller():
    with jax.enable_x64(True):
        run = Runner(lambda weights, arrays: {"y": arrays["x"] * 3}, {}, CPU)
        y = run({"x": X.astype("float64")})["y"]
    assert run.rounding == "float64"
    np.testing.assert_array_equal(y, X.astype("float64") * 3)


def test_errors_of_a_run_reach_the_caller():
    def fail(x):
        raise OverflowError("too large")

    def flow(weights, arrays):
        return {"y": jax.pure_callback(fail, jax.ShapeDtypeStruct((5, 3), "float32"), arrays["x"])}

    with pytest.raises(Exception, match="too large"):
        Runner(flow, {}, CPU)({"x": X})


def test_nudges_are_rounding_errors_of_the_coarsest_dtype():
    ids = np.arange(15, dtype="int32").reshape(5, 3)

    def flow(weights, arrays):
        half = arrays["x"].astype("bfloat16")
        return {"x": arrays["x"], "w": weights["w"], "n": arrays["n"] + weights["n"], "half": half}

    run = Runner(flow, {"w": X, "n": ids}, CPU)
    plain = run({"x": X, "n": ids})
    nudged = [run.nudged(seed=seed)({"x": X, "n": ids}) for seed in (0, 0, 1)]
    assert run.rounding == "bfloat16"
    np.testing.assert_array_equal(nudged[0]["n"], 2 * ids)
    for name in ("x", "w"):
        np.testing.assert_array_equal(nudged[0][name], nudged[1][name])
        assert (nudged[0][name] != nudged[2][name]).any()
        # The epsilon of bfloat16; the quotient is rounded to float32.
        np.testing.assert_allclose(
            np.abs(nudged[0][name] / plain[name] - 1), np.full(X.shape, 2.0**-7), rtol=1e-4
        )


@pytest.fixture
def debugging():
    """JAX raises an error for results that are NaN or infinite."""
    options = ("jax_debug_nans", "jax_debug_infs")
    for option in options:
        jax.config.update(option, True)
    yield
    for option in options:
        jax.config.update(option, False)


@pytest.mark.thorough
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_may_be_nan_or_infinite_while_jax_looks_for_such_results(debugging, value):
    x = np.where(np.arange(5)[:, None] == 2, np.float32(value), X)
    run = Runner(lambda w, arrays: {"x": arrays["x"] * 1, "w": w["w"]}, {"w": X}, CPU)
    np.testing.assert_array_equal(run({"x": x})["x"], x)
    nudged = run.nudged(seed=0)({"x": x})
    np.testing.assert_allclose(nudged["x"], x, rtol=2e-7)  # an epsilon of float32 is 1.2e-7
    with pytest.raises(FloatingPointError):
        jnp.asarray(x) * 2


def test_functions_of_integers_are_not_nudged():
    run = Runner(lambda weights, arrays: {"y": arrays["n"]}, {}, CPU)
    n = np.arange(6, dtype="int32")
    run({"n": n})
    assert run.rounding is None
    assert not run.is_nudged({"n": n})
    np.testing.assert_array_equal(run.nudged(seed=0)({"n": n})["y"], n)


def doubled(weights, arrays):
    return {"w": weights["w"], "y": arrays["x"].astype("float32") * 2}


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float64", "complex128", "complex64", "float16", "bfloat16"])
def test_floats_move_by_an_epsilon_of_their_own(dtype):
    """Also in float64, where 1 plus an epsilon is 1 in float32."""
    with jax.enable_x64(True):
        values = np.asarray(jnp.asarray(X).astype(dtype))
        run = Runner(lambda w, arrays: {"w": w["w"], "y": arrays["x"] * 2}, {"w": values}, CPU)
        run({"x": values})
        assert run.is_nudged({})
        assert run.rounding == dtype
        moved = run.nudged(seed=0)({"x": values})["w"]
    wide = np.complex128 if dtype.startswith("complex") else np.float64
    before, after = values.astype(wide), moved.astype(wide)
    # The product is rounded, so the change is one epsilon within half of one.
    change = np.abs(after - before) / np.abs(before) / float(jnp.finfo(dtype).eps)
    assert change.min() >= 0.5
    assert change.max() <= 1.5


@pytest.mark.parametrize(
    "dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn"]
)
def test_floats_of_8_bits_stay(dtype):
    values = np.asarray(jnp.asarray(X).astype(dtype))
    run = Runner(doubled, {"w": values}, CPU)
    run({"x": X})
    assert not run.is_nudged({"x": values})
    assert run.is_nudged({"x": X})
    nudged = run.nudged(seed=0)({"x": X})
    np.testing.assert_array_equal(nudged["w"].astype("float32"), values.astype("float32"))
    assert (nudged["y"] != 2 * X).any()


@pytest.mark.thorough
def test_signs_of_nudges_are_balanced_and_unlike():
    ones = np.ones((64, 65), "float32")
    run = Runner(lambda w, arrays: w | {"x": arrays["x"] * 1}, {"a": ones, "b": ones}, CPU)
    run({"x": ones})
    signs = np.stack(
        [
            np.sign(values - 1).reshape(-1)
            for seed in range(3)
            for values in run.nudged(seed=seed)({"x": ones}).values()
        ]
    )
    assert np.abs(signs).min() == 1
    # Means of 4,160 independent signs have a deviation of 0.0155; 0.08 is five of them.
    np.testing.assert_allclose(signs.mean(1), 0, atol=0.08)
    products = signs @ signs.T / signs.shape[1]
    np.testing.assert_allclose(products, np.eye(len(signs)), atol=0.08)
    # Neighbours in a row and in a column.
    grid = signs.reshape(-1, 64, 65)
    for axis in (1, 2):
        shifted = (grid * np.roll(grid, 1, axis)).mean((1, 2))
        np.testing.assert_allclose(shifted, 0, atol=0.08)


def test_captured_floats_are_told():
    for fn, captures in ((lambda x: x + jnp.asarray(X), True), (lambda x: x + 1, False)):
        run = Runner(lambda weights, arrays, fn=fn: {"y": fn(arrays["x"])}, {}, CPU)
        run({"x": X})
        assert run.captures is captures


def test_a_first_run_that_never_ends_is_refused(caplog):
    caplog.set_level("DEBUG", "dovetail_serve")
    ends = threading.Event()

    def wait(x):
        ends.wait()
        return x

    def flow(weights, arrays):
        return {"y": jax.pure_callback(wait, jax.ShapeDtypeStruct((5, 3), "float32"), arrays["x"])}

    try:
        with pytest.raises(UnfinishedError, match=r"no result within 0 s in a batch of 5; .*lim"):
            Runner(flow, {}, CPU, limit_s=0.4)({"x": X})
    finally:
        ends.set()
    assert [record.getMessage() for record in caplog.records] == [
        "tracing fn for a batch of 5",
        "compiling fn for a batch of 5",
        "running fn in a batch of 5",
    ]


def test_a_compilation_that_never_ends_is_refused(monkeypatch):
    # A compiler of JAX that does not end cannot be had on demand.
    waiting = threading.Event()
    compiled = jax.stages.Lowered.compile

    def compile(lowered, *args, **options):
        waiting.wait()
        return compiled(lowered, *args, **options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile)
    try:
        with pytest.raises(ValueError, match=r"compile within 1 s, got no end for a batch of 5; "):
            Runner(product, {"w": X}, CPU, limit_s=0.1)({"x": X})
    finally:
        waiting.set()


def test_message_of_a_run_that_does_not_end():
    error = UnfinishedError(rows=8, waited_s=61.4)
    assert error.waited_s == 61.4
    assert str(error).startswith(
        "fn must end for each batch, got no result within 61 s in a batch of 8; end its loops"
    )


# In a process of its own, since each run takes a core until its process ends.
@pytest.mark.thorough
def test_loops_that_never_end_are_refused_and_the_process_ends():
    run = subprocess.run(
        [sys.executable, PROGRAMS / "endless_rows.py"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
        env={"JAX_PLATFORMS": "cpu"},
    )
    refusals = json.loads(run.stdout)
    assert "no result within 2 s in a batch of 4; end its loops" in refusals["example"]
    assert "with limit_s=20" in refusals["example"]
    assert "in a batch of 4 beside rows of NaN; end the loops of fn" in refusals["rows"]
    assert "in a batch of 8 beside padding of zeros; end the loops of fn" in refusals["size"]

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The native library: every level of instructions, threads, shards, and wheels that do not fit."""

import ctypes
import functools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import forced_devices
from dovetail_kernels.quantized import native
from dovetail_kernels.quantized.api import plan_quantized_matmul, quantized_matmul
from dovetail_kernels.quantized.layout import PackedWeights
from dovetail_kernels.quantized.pack import pack_weights
from dovetail_kernels.testing.quantized import cases, check_quantized_matmul

KERNELS = Path(__file__).resolve().parents[2]
EVERYTHING = {need for case in cases() for need in case.needs}
RNG = np.random.default_rng(0)
LEVELS = {"portable": 0, "avx2": 1, "avx512": 2}


def with_level(
    level: int,
    traced: list[int],
    x: jax.Array,
    w: PackedWeights,
    *,
    activations: str | None = None,
) -> jax.Array:
    """`quantized_matmul` with the instructions of `level`, where native may run."""
    plan_quantized_matmul(x, w, activations=activations, impl="native").choose()
    call = functools.partial(native.call, level=level)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "call", lambda *args: traced.append(level) or call(*args))
        return quantized_matmul(x, w, activations=activations, impl="native")


@pytest.mark.thorough
@pytest.mark.usefixtures("native_library", "traced_anew")
@pytest.mark.parametrize("level", LEVELS)
def test_conforms(level: str) -> None:
    path = sys.modules["dovetail_kernels_cpu"].LIBRARY
    if ctypes.CDLL(str(path)).dovetail_kernels_cpu_level() < LEVELS[level]:
        pytest.skip(f"this processor has no {level}")
    traced: list[int] = []
    check_quantized_matmul(
        functools.partial(with_level, LEVELS[level], traced),
        supports=EVERYTHING - {"float64", "odd groups", "many rows"},
    )
    assert len(traced) >= 4  # a program for each kind of weights, none of another level


def weights(inputs: int, outputs: int, **options: object) -> PackedWeights:
    return pack_weights(RNG.standard_normal((inputs, outputs)).astype(np.float32), **options)


@pytest.mark.thorough
@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize(
    "options", [{"bits": 8}, {"bits": 4, "symmetric": False}, {"bits": 16}], ids=str
)
def test_threads_do_not_change_a_bit(options: dict) -> None:
    """A product that is divided among threads, against its channels one by one."""
    w = weights(1024, 1031, **options)
    x = jnp.asarray(RNG.standard_normal((3, 1024)), jnp.float32)
    whole = np.asarray(native.call(x, w))
    for begin, end in ((0, 9), (515, 522), (1027, 1031)):
        part = jax.tree.map(lambda a, b=begin, e=end: a[b:e], w)
        np.testing.assert_array_equal(native.call(x, part), whole[:, begin:end])
    for _ in range(20):
        np.testing.assert_array_equal(native.call(x, w), whole)


@pytest.mark.thorough
@pytest.mark.usefixtures("native_library")
def test_many_calls_at_once() -> None:
    """Every thread of XLA's pool may be inside a call, waiting for tasks that are still queued."""
    w = weights(1024, 1031, bits=8)
    x = jnp.asarray(RNG.standard_normal((1, 1024)), jnp.float32)
    call = jax.jit(native.call).lower(x, w).compile()
    expected = np.asarray(call(x, w))
    with ThreadPoolExecutor(16) as pool:
        results = [pool.submit(lambda: np.asarray(call(x, w))) for _ in range(200)]
        for result in results:
            np.testing.assert_array_equal(result.result(timeout=300), expected)


@pytest.mark.thorough
@pytest.mark.usefixtures("native_library")
def test_a_row_has_the_same_bits_in_any_batch() -> None:
    w = weights(256, 37, bits=4)
    x = jnp.asarray(RNG.standard_normal((4, 256)), jnp.float32)
    whole = np.asarray(native.call(x, w))
    for rows in (1, 2, 3):
        np.testing.assert_array_equal(native.call(x[:rows], w), whole[:rows])


@pytest.mark.thorough
@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize("batch", [3, 9])
def test_rows_under_vmap_are_one_product(batch: int) -> None:
    w = weights(64, 37, bits=4, group_size=32)
    x = jnp.asarray(RNG.standard_normal((batch, 1, 64)), jnp.float32)
    mapped = jax.jit(jax.vmap(functools.partial(quantized_matmul, w=w, impl="native")))
    calls = mapped.lower(x).as_text().count("custom_call @dovetail_kernels_matmul")
    assert calls == (1 if batch <= native.ROWS else 0)
    expected = quantized_matmul(x[:, 0], w, impl="reference")
    np.testing.assert_allclose(mapped(x)[:, 0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
@pytest.mark.usefixtures("native_library")
def test_exported_for_other_platforms_the_product_is_jnps() -> None:
    w = weights(64, 37, bits=8)
    x = jnp.asarray(RNG.standard_normal((2, 64)), jnp.float32)
    assert plan_quantized_matmul(x, w).choose().name == "native"
    product = jax.jit(functools.partial(quantized_matmul, w=w))
    exported = jax.export.export(product, platforms=["cuda"])(x)
    assert native._TARGET not in exported.mlir_module()
    allowed = [jax.export.DisabledSafetyCheck.custom_call(native._TARGET)]
    exported = jax.export.export(product, platforms=["cpu", "tpu"], disabled_checks=allowed)(x)
    assert native._TARGET in exported.mlir_module()
    np.testing.assert_array_equal(exported.call(x), product(x))


@pytest.mark.thorough
@pytest.mark.usefixtures("native_library")
def test_in_a_shard_map_with_default_checks() -> None:
    w = weights(64, 37, bits=8)
    x = jnp.asarray(RNG.standard_normal((2, 64)), jnp.float32)
    product = functools.partial(quantized_matmul, w=w, impl="native")
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.PartitionSpec("d")
    mapped = jax.shard_map(product, mesh=mesh, in_specs=rows, out_specs=rows)
    for function in (mapped, jax.jit(mapped)):
        np.testing.assert_array_equal(function(x), product(x))
        gradient = jax.grad(lambda x, f=function: f(x).sum())(x)
        np.testing.assert_array_equal(gradient, jax.grad(lambda x: product(x).sum())(x))


@pytest.mark.thorough
@pytest.mark.usefixtures("native_library")
def test_stacked_weights_under_vmap() -> None:
    ws = [weights(64, 37, bits=8), weights(64, 37, bits=8)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *ws)
    x = jnp.asarray(RNG.standard_normal((2, 64)), jnp.float32)
    call = functools.partial(quantized_matmul, impl="native")
    for in_axes, rows in (((None, 0), x), ((0, 0), jnp.stack([x, 2 * x]))):
        found = jax.vmap(call, in_axes)(rows, stacked)
        for i in (0, 1):
            expected = call(rows if rows.ndim == 2 else rows[i], ws[i])
            np.testing.assert_array_equal(found[i], expected)


@pytest.mark.thorough
def test_shards_run_it(wheel: Path | None) -> None:
    environment = forced_devices.environment(4, cached=True)
    path = os.pathsep.join(filter(None, (str(wheel or ""), environment["PYTHONPATH"])))
    done = subprocess.run(
        [sys.executable, str(KERNELS / "tests/programs/quantized_sharded.py"), "native"],
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "ok\n", done.stderr


@pytest.fixture
def fresh() -> object:
    native.unavailable.cache_clear()
    yield
    native.unavailable.cache_clear()


@pytest.mark.thorough
@pytest.mark.usefixtures("fresh")
def test_without_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native.importlib.util, "find_spec", lambda name: None)
    choices = plan_quantized_matmul(np.ones((1, 64), np.float32), weights(64, 5)).choices()
    assert choices[0].refusal == (
        "dovetail-kernels-cpu is not installed; in a checkout: pip install packages/kernels/native"
    )
    assert choices[1].selected


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("abi, upgrade", [(0, "dovetail-kernels-cpu"), (2, "dovetail-kernels")])
def test_a_wheel_of_another_version(
    abi: int, upgrade: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = SimpleNamespace(dovetail_kernels_cpu_abi=lambda: abi)
    monkeypatch.setattr(native.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(
        native.importlib, "import_module", lambda name: SimpleNamespace(LIBRARY="x")
    )
    monkeypatch.setattr(native.ctypes, "CDLL", lambda path: library)
    assert native.unavailable() == (
        f"dovetail-kernels-cpu has ABI {abi}, this needs 1: pip install --upgrade {upgrade}"
    )


@pytest.mark.usefixtures("fresh")
def test_a_library_that_does_not_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(native.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(
        native.importlib, "import_module", lambda name: SimpleNamespace(LIBRARY=broken)
    )
    reason = native.unavailable()
    assert reason is not None
    assert reason.startswith("the library of dovetail-kernels-cpu does not load: ")


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize(
    "rows, change, message",
    [
        (5, {}, "rows must be 1 to 4"),
        (1, {"bits": 4}, "values do not have the type of their bits"),
        (1, {"scales": jnp.ones((6, 1))}, "scales do not fit"),
        (1, {"scales": jnp.ones((5, 8))}, "a group must be a whole number of vectors"),
        (1, {"zeros": jnp.ones((5, 2))}, "zeros do not fit"),
        (1, {"values": jnp.ones((5, 48), jnp.int8)}, "shapes of x, values and y do not fit"),
    ],
)
def test_the_handler_checks_its_buffers(rows: int, change: dict, message: str) -> None:
    held = {"values": jnp.ones((5, 64), jnp.int8), "scales": jnp.ones((5, 1)), "bits": 8}
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        native.call(jnp.ones((rows, 64)), PackedWeights(**{**held, **change})).block_until_ready()


@pytest.mark.slow
def test_the_linker_of_macos_gets_no_version_script(build_script: ModuleType) -> None:
    linux, macos = build_script.link_flags("Linux"), build_script.link_flags("Darwin")
    assert [f for f in linux if "version-script" in f]
    assert not [f for f in macos if "version-script" in f or f.startswith("-static") or f == "-s"]
    assert "-Wl,-exported_symbol,_dovetail_kernels_cpu_*" in macos


@pytest.mark.thorough
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_under_sanitizers(tmp_path: Path, sanitizers: str) -> None:
    """Kernels over buffers of exactly their size, and products on threads soon, late and never."""
    built = tmp_path / "check"
    script = str(KERNELS / "native/tests/build_check.py")
    subprocess.run([sys.executable, script, str(built), sanitizers], check=True)
    done = subprocess.run([str(built)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok, levels 0 to ")

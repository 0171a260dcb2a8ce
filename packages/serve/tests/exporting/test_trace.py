# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Programs are traced for each platform and number of rows, and hold no trace of the machine."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

from dovetail_serve import Platform, Tensor
from dovetail_serve.exporting.trace import trace

INPUTS = {"x": Tensor(("batch", 3), "float32")}
W = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
CPU, CUDA, TPU = (Platform(name=name) for name in ("cpu", "cuda", "tpu"))


def mlp(weights, arrays):
    with jax.named_scope("first_layer"):
        return {"y": jnp.tanh(arrays["x"] @ weights["w"])}


def traced(flow=mlp, *, platforms=(CPU,), batch_sizes=(1, 4), inputs=INPUTS, **options):
    return trace(flow, {"w": W}, inputs, platforms=platforms, batch_sizes=batch_sizes, **options)


def loaded(result, batch, platform="cpu"):
    (entry,) = [p for p in result.programs if p.batch == batch and platform in p.platforms]
    return jax_export.deserialize(bytearray(result.files[entry.file]))


def by_device(weights, arrays):
    """Chooses an operation by the device that it is traced for."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    kind = device.device_kind if device else "none"
    operation = {"NVIDIA H100 80GB HBM3": jnp.tanh, "none": jnp.cos}[kind]
    return {"y": operation(arrays["x"])}


@pytest.mark.capability("programs for several platforms in one bundle", on=("cuda", "tpu"))
def test_one_program_for_each_number_of_rows_and_one_for_any():
    result = traced(platforms=(CPU, CUDA, TPU))
    assert [(p.file, p.platforms, p.batch) for p in result.programs] == [
        (f"programs/cpu-cuda-tpu.{rows}.stablehlo", ("cpu", "cuda", "tpu"), rows)
        for rows in (1, 4, "symbolic")
    ]
    assert result.files.keys() == {p.file for p in result.programs}
    assert result.outputs == {"y": Tensor(("batch", 4), "float32")}
    assert result.symbolic is None


@pytest.mark.thorough
@pytest.mark.capability("programs for several platforms in one bundle")
def test_every_program_computes_the_function():
    result = traced()
    for batch, rows in ((1, 1), (4, 4), ("symbolic", 5)):
        x = np.random.default_rng(rows).normal(size=(rows, 3)).astype("float32")
        y = jax.jit(loaded(result, batch).call)({"w": W}, {"x": x})["y"]
        # float32 sums of three terms.
        np.testing.assert_allclose(y, np.tanh(x.astype("f8") @ W), rtol=1e-5, atol=1e-6)


def test_without_a_batch_axis_there_is_one_program():
    result = traced(batch_sizes=(), inputs={"x": Tensor((2, 3), "float32")})
    assert [p.batch for p in result.programs] == [None]
    assert result.outputs == {"y": Tensor((2, 4), "float32")}
    assert result.symbolic == "its inputs have no batch axis"


def test_one_row_at_a_time_has_no_program_for_several_rows():
    # Nothing has shown that rows do not depend on each other.
    result = traced(batch_sizes=(1,))
    assert [p.batch for p in result.programs] == [1]
    assert result.symbolic == "it was exported for one row at a time"


def test_operations_choose_for_the_device_of_the_platform():
    h100 = Platform(name="cuda", device_kind="NVIDIA H100 80GB HBM3")
    result = traced(by_device, platforms=(CPU, h100, TPU), batch_sizes=(2,))
    assert [p.platforms for p in result.programs if p.batch == 2] == [("cpu", "tpu"), ("cuda",)]
    for platform, operation in (("cpu", "cosine"), ("tpu", "cosine"), ("cuda", "tanh")):
        for batch in (2, "symbolic"):
            assert f"stablehlo.{operation}" in loaded(result, batch, platform).mlir_module()


def test_weights_are_traced_in_the_dtype_of_the_platform():
    half = Platform(name="cuda", weights="bfloat16")
    result = traced(platforms=(CPU, half), batch_sizes=(2,))
    dtypes = {p: loaded(result, 2, p).in_avals[0].dtype.name for p in ("cpu", "cuda")}
    assert dtypes == {"cpu": "float32", "cuda": "bfloat16"}


def test_outputs_have_one_dtype_on_all_platforms():
    half = Platform(name="cuda", weights="bfloat16")
    with pytest.raises(ValueError, match=r"'y' as .*'float32'.* as .*'bfloat16'.*on cuda; .*cast"):
        traced(lambda w, a: {"y": a["x"].astype(w["w"].dtype)}, platforms=(CPU, half))


def test_outputs_have_one_shape_for_all_numbers_of_rows():
    with pytest.raises(ValueError, match=r"along its first axis alone|one shape and dtype"):
        traced(lambda w, a: {"y": a["x"] @ a["x"].T})


def test_batch_axis_that_is_a_coincidence_is_refused():
    # Three rows of weights for three rows of inputs.
    with pytest.raises(ValueError, match=r"'y' of shape .*for symbolic rows; return"):
        traced(lambda w, a: {"y": w["w"]}, batch_sizes=(3,))


def test_outputs_of_the_symbolic_program_are_those_of_the_others():
    def flow(weights, arrays):
        width = 2 if isinstance(arrays["x"].shape[0], int) else 3
        return {"y": arrays["x"][:, :width]}

    with pytest.raises(
        ValueError, match=r"got 'y' as .* 2.* and as .* 3.* for symbolic rows on cpu"
    ):
        traced(flow)


def needs_rows(weights, arrays):
    return {"y": arrays["x"] * (2 if arrays["x"].shape[0] > 3 else 1)}


def counts_rows(weights, arrays):
    return {"y": jnp.stack([arrays["x"][i] for i in range(arrays["x"].shape[0])])}


@pytest.mark.parametrize(
    ("flow", "reason"),
    [
        (needs_rows, "needs_rows refuses .*: Symbolic dimension comparison 'batch' > '3' is"),
        (counts_rows, "counts_rows.* refuses .*: an operation needs the number of rows as an int"),
    ],
)
def test_reason_for_no_symbolic_program_is_a_sentence(flow, reason):
    result = traced(flow)
    assert [p.batch for p in result.programs] == [1, 4]
    assert result.files.keys() == {p.file for p in result.programs}
    assert result.symbolic is not None
    assert not {"/", "\n"} & set(result.symbolic)
    assert re.match(reason, result.symbolic)


def custom(weights, arrays):
    x = arrays["x"]
    return {"y": jax.ffi.ffi_call("dovetail_test_target", x)(x)}


def test_custom_calls_are_refused_by_name():
    with pytest.raises(
        ValueError,
        match=r"got 'dovetail_test_target'; write custom_calls=\('dovetail_test_target',\).*jaxlib",
    ):
        traced(custom, batch_sizes=(2,))


def test_custom_calls_are_allowed_by_name():
    result = traced(custom, batch_sizes=(2,), custom_calls=("dovetail_test_target",))
    assert "@dovetail_test_target" in loaded(result, 2).mlir_module()


def test_message_keeps_the_custom_calls_that_are_allowed():
    def two(weights, arrays):
        return {"y": jax.ffi.ffi_call("other_target", arrays["x"])(custom(weights, arrays)["y"])}

    with pytest.raises(
        ValueError, match=r"custom_calls=\('dovetail_test_target', 'other_target'\)"
    ):
        traced(two, batch_sizes=(2,), custom_calls=("dovetail_test_target",))


def test_allowed_custom_calls_must_be_called():
    with pytest.raises(ValueError, match="got 'dovetail_test_target', which no program calls; lea"):
        traced(custom_calls=("dovetail_test_target",))


def test_callbacks_are_refused_though_they_are_allowed_by_name():
    def flow(weights, arrays):
        return {"y": jax.ffi.ffi_call("xla_ffi_python_cpu_callback", arrays["x"])(arrays["x"])}

    for allowed in ((), ("xla_ffi_python_cpu_callback",)):
        with pytest.raises(ValueError, match="must not call back into Python"):
            traced(flow, batch_sizes=(2,), custom_calls=allowed)


def test_promised_custom_calls_need_no_permission():
    def flow(weights, arrays):
        x = arrays["x"]
        return {"y": jnp.linalg.cholesky(x[:, :, None] * x[:, None, :] + jnp.eye(3))}

    assert "custom_call" in loaded(traced(flow, batch_sizes=(2,)), 2).mlir_module()


@pytest.mark.thorough
def test_programs_hold_names_of_operations_and_no_paths():
    result = traced()
    for data in result.files.values():
        assert b"first_layer" in data
        assert b"test_trace" not in data
        assert b".py" not in data


@pytest.mark.thorough
def test_equal_functions_have_equal_programs_from_any_line():
    first = traced(lambda w, a: mlp(w, a))
    second = traced(lambda w, a: mlp(w, a))
    assert first.files == second.files
    assert traced(lambda w, a: {"y": jnp.cos(a["x"])}).files != first.files


@pytest.mark.parametrize("flow", [mlp, custom])
def test_option_for_source_locations_is_set_back(flow):
    before = jax.config.jax_traceback_in_locations_limit
    try:
        traced(flow, batch_sizes=(2,))
    except ValueError:
        assert flow is custom
    assert jax.config.jax_traceback_in_locations_limit == before > 0


def test_number_of_traces_is_linear():
    traces = []

    def flow(weights, arrays):
        traces.append(arrays["x"].shape)
        return mlp(weights, arrays)

    traced(flow, platforms=(CPU, CUDA, TPU), batch_sizes=(1, 2, 3, 4))
    # One more, where JAX does not keep the one whose operations are checked.
    assert 5 <= len(traces) <= 6


def test_errors_of_the_function_pass():
    def flow(weights, arrays):
        raise KeyError("kernel")

    with pytest.raises(KeyError, match="kernel"):
        traced(flow)

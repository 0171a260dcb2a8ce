# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Custom calls of programs are checked by their targets, on every platform, before they compile."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import export as jax_export

from dovetail_serve import BundleError
from dovetail_serve.loading.custom_calls import check_custom_calls

X = jax.ShapeDtypeStruct((3, 3), "float32")
CALLBACKS = [
    "xla_ffi_python_cpu_callback",
    "xla_ffi_partitioned_python_cpu_callback",
    "xla_python_gpu_callback",
]


def call(target):
    return lambda x: jax.ffi.ffi_call(target, X)(x)


def lowered(function, *, platforms=("cpu",), targets=()):
    """A function as `load` reads it: exported, serialized, deserialized and lowered."""
    allowed = [jax_export.DisabledSafetyCheck.custom_call(target) for target in targets]
    export = jax_export.export(jax.jit(function), platforms=platforms, disabled_checks=allowed)
    exported = jax_export.deserialize(bytearray(export(X).serialize()))
    return jax.jit(exported.call).lower(X)


def check(program, *, pinned=False):
    check_custom_calls(program, file="programs/cpu.1.stablehlo", pinned=pinned)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: jnp.linalg.cholesky(x @ x.T + jnp.eye(3)),
        call("tpu_custom_call"),
        call("mosaic_gpu_v2"),
    ],
    ids=["none", "lapack", "tpu", "mosaic"],
)
def test_promised_calls_are_accepted(function):
    check(lowered(function))


def test_the_assertion_of_a_symbolic_shape_is_accepted():
    (n,) = jax_export.symbolic_shape("n", constraints=["n >= 2"])
    shape = jax.ShapeDtypeStruct((n,), "float32")
    exported = jax_export.export(jax.jit(lambda x: x[1:]), platforms=("cpu",))(shape)
    assert "@shape_assertion" in exported.mlir_module()
    check(jax.jit(exported.call).lower(jax.ShapeDtypeStruct((4,), "float32")))


def test_other_calls_need_a_bundle_of_this_jaxlib():
    program = lowered(call("lapack_sgeqp3_ffi"), targets=["lapack_sgeqp3_ffi"])
    check(program, pinned=True)
    with pytest.raises(BundleError) as caught:
        check(program)
    for part in (
        "programs/cpu.1.stablehlo must make no custom calls but those",
        "got 'lapack_sgeqp3_ffi'",
        "export it again with custom_calls=('lapack_sgeqp3_ffi',)",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("target", CALLBACKS)
def test_callbacks_are_always_refused(target, pinned):
    program = lowered(call(target), targets=[target])
    message = f"must not call back into Python.* got the custom call {target!r}; export"
    with pytest.raises(BundleError, match=message):
        check(program, pinned=pinned)


def test_calls_in_branches_of_other_platforms_count():
    target = "xla_ffi_python_cpu_callback"

    def inner(x):
        later = jax.lax.fori_loop(0, 3, lambda _, y: call(target)(y), x)
        return jax.lax.platform_dependent(x, cuda=lambda _: later, default=lambda x: x)

    program = lowered(inner, platforms=("cpu", "cuda"), targets=[target])
    with pytest.raises(BundleError, match=re.escape(target)):
        check(program, pinned=True)

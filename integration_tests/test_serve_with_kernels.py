# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Kernels choose an implementation while they are traced: programs of one device kind."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

from dovetail_kernels import attention
from dovetail_serve import Platform, Tensor, export, load

H100 = Platform(name="cuda", device_kind="NVIDIA H100 80GB HBM3")
# What stands for cuDNN's call where no GPU is beside the tracing process.
OUTLINE = "dovetail_kernels_outline_of_cudnn_attention"
T, HEADS, WIDTH = 140, 4, 16


def exported(*, dtype, platforms=("cpu", H100), impl=None, **options):
    """A bundle of causal attention after a projection."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((WIDTH, WIDTH)).astype(jnp.dtype(dtype))}
    x = rng.standard_normal((3, T, HEADS, WIDTH)).astype(jnp.dtype(dtype))
    attend = functools.partial(attention, causal=True, impl=impl)
    return export(
        lambda p, *, x: {"y": attend(x @ p["w"], x, x)},
        weights,
        inputs={"x": Tensor(("batch", T, HEADS, WIDTH), dtype)},
        example={"x": x},
        batch_sizes=(1, 4),
        platforms=platforms,
        **options,
    )


def texts(bundle):
    """{(platform, rows): StableHLO as text} of a bundle."""
    files = bundle.traced.files
    return {
        (program.platforms, program.batch): str(
            jax_export.deserialize(bytearray(files[program.file])).mlir_module()
        )
        for program in bundle.traced.programs
    }


def calls(text):
    """Targets of the custom calls of a program, without those that JAX promises to keep."""
    return {*re.findall(r"custom_call @([\w$.]+)", text)} - {"shape_assertion"}


@pytest.mark.thorough
def test_a_device_kind_has_programs_of_its_own_in_which_the_kernels_chose_for_it(tmp_path):
    bundle = exported(dtype="float32")
    programs = texts(bundle)
    sizes = (1, 4, "symbolic")
    assert programs.keys() == {((name,), rows) for name in ("cpu", "cuda") for rows in sizes}
    for rows in sizes:
        of_cpu, of_h100 = programs[("cpu",), rows], programs[("cuda",), rows]
        assert calls(of_cpu) == calls(of_h100) == set()
        # Blocks of another size: other shapes inside, not the same program under another name.
        assert shapes(of_cpu) != shapes(of_h100)
    bundle.save(tmp_path / "1")
    x = np.random.default_rng(1).standard_normal((6, T, HEADS, WIDTH)).astype("float32")
    found = load(tmp_path / "1")(x=x)["y"]
    q = x.astype(np.float64) @ np.asarray(bundle.flat.arrays["w"], np.float64)
    # float32 sums of 16 and of 140 products.
    np.testing.assert_allclose(found, causal(q, x.astype(np.float64)), rtol=0, atol=1e-4)


def shapes(text):
    return {*re.findall(r"tensor<[\dx?]+xf32>", text)}


def causal(q, x):
    """Attention of queries q to x in NumPy, float64."""
    scores = np.einsum("bthc,bshc->bhts", q, x) / np.sqrt(WIDTH)
    scores = np.where(np.tril(np.ones((T, T), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhts,bshc->bthc", weights / weights.sum(-1, keepdims=True), x)


@pytest.mark.thorough
def test_one_program_serves_all_platforms_without_a_device_kind():
    programs = texts(exported(dtype="float32", platforms=("cpu", "cuda", "tpu")))
    assert programs.keys() == {(("cpu", "cuda", "tpu"), rows) for rows in (1, 4, "symbolic")}


def test_a_kernel_that_is_compiled_for_the_device_alone_is_refused_by_name():
    with pytest.raises(ValueError, match=re.escape(OUTLINE)):
        exported(dtype="bfloat16")


@pytest.mark.thorough
def test_the_portable_implementation_is_exported_instead():
    programs = texts(exported(dtype="bfloat16", impl="blocked"))
    assert all(calls(text) == set() for text in programs.values())


def test_a_custom_call_that_is_allowed_by_name_pins_jaxlib():
    bundle = exported(dtype="bfloat16", custom_calls=(OUTLINE,))
    programs = texts(bundle)
    assert calls(programs[("cuda",), 1]) == {OUTLINE}
    assert calls(programs[("cpu",), 1]) == set()
    assert bundle.requires == {"jaxlib": jax.lib.__version__}

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tensors, platforms and host functions check their own values."""

import re

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_serve import HostFunction, Platform, Signature, Tensor
from dovetail_serve.types import check_compiler_options, check_name, dtype_name, numpy_dtype


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        ("float32", "float32"),
        (np.int8, "int8"),
        (jnp.bfloat16, "bfloat16"),
        (jnp.dtype("int4"), "int4"),
        (np.dtype(">f4"), "float32"),
        (bool, "bool"),
        ("bytes", "bytes"),
    ],
)
def test_names_of_dtypes(dtype, name):
    assert dtype_name(dtype) == name


OTHERS = [
    "float31",
    "str",
    object,
    "S3",
    "datetime64[s]",
    "V4",
    "f4,i4",
    ",",
    ">f4",
    "(2",
    "\n",
    "",
]


@pytest.mark.parametrize("dtype", [*OTHERS, "2026-11-27"])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(TypeError, match="dtype must be one that JAX holds, got dtype="):
        dtype_name(dtype)


def test_texts_are_objects_in_numpy():
    assert numpy_dtype("bytes") == np.dtype(object)
    assert numpy_dtype("bfloat16") == jnp.bfloat16


def test_sized():
    tensor = Tensor(("batch", 3), "float32")
    assert tensor.batched
    assert tensor.sized(7) == (7, 3)
    assert not Tensor((2, 3), "float32").batched
    assert Tensor((2, 3), "float32").sized(None) == (2, 3)
    assert not Tensor((), "float32").batched


@pytest.mark.parametrize("shape", [(3, "batch"), ("rows", 3), (-1,), (True,)])
def test_wrong_sizes_are_refused(shape):
    with pytest.raises(ValueError, match=r"integers from 0, or \"batch\".*got shape=\(.*; write"):
        Tensor(shape, "float32")


def test_sizes_may_be_integers_of_numpy():
    # As __init__ does, which accepts integers of Python alone in tests: annotations are checked.
    tensor = object.__new__(Tensor)
    object.__setattr__(tensor, "shape", ("batch", np.int64(4)))
    object.__setattr__(tensor, "dtype", "float32")
    tensor.__post_init__()
    assert tensor == Tensor(("batch", 4), "float32")
    assert [type(size) for size in tensor.shape] == [str, int]


def test_signature_is_batched_with_its_inputs():
    fixed, batched = Tensor((3,), "float32"), Tensor(("batch",), "int32")
    assert Signature(inputs={"x": batched}, outputs={}).batched
    assert not Signature(inputs={"x": fixed}, outputs={"y": batched}).batched


def test_platforms():
    assert not Platform(name="cpu", compiler_options={"a": True}).own_programs
    assert Platform(name="cuda", device_kind="NVIDIA H100 80GB HBM3").own_programs
    assert Platform(name="tpu", weights="bfloat16").own_programs


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"name": "gpu"}, ValueError, "one of cpu, cuda, rocm, tpu, got name='gpu'; NVIDIA"),
        ({"weights": "int8"}, ValueError, "floating-point dtype, got weights='int8'; write"),
        ({"weights": "float31"}, TypeError, "dtype must be one that JAX holds, got"),
    ],
)
def test_wrong_platforms_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        Platform(**({"name": "cpu"} | options))


FILES = [
    ("xla_dump_to", "out"),
    ("xla_dump_hlo_as_text", True),
    ("xla_gpu_dump_autotune_results_to", "results"),
    ("xla_gpu_load_autotune_results_from", "results"),
    ("xla_gpu_cuda_data_dir", "cuda"),
    ("xla_gpu_per_fusion_autotune_cache_dir", "cache"),
    ("xla_gpu_kernel_cache_file", "cache"),
    ("xla_gpu_pgle_profile_file_or_directory_path", "profile"),
    ("xla_gpu_target_config_filename", "config"),
    ("xla_gpu_ptx_file", "kernel"),
    ("xla_backend_extra_options", "xla_other"),
    ("xla_gpu_asm_extra_flags", "-v"),
    ("xla_new_plugin", "library"),
    ("xla_new_option", "/etc/passwd"),
    ("xla_new_option", "~root"),
    ("xla_new_option", r"C:\\new"),
]


@pytest.mark.parametrize(("name", "value"), FILES)
def test_compiler_options_that_name_files_are_refused(name, value):
    with pytest.raises(
        ValueError, match=r"must name no file, directory .*; leave it out"
    ) as caught:
        Platform(name="cpu", compiler_options={name: value})
    assert f"got {name!r}: {value!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("xla_cpu_enable_fast_math", True),
        ("xla_cpu_max_isa", "AVX2"),
        ("xla_disable_hlo_passes", "fusion,dot-merger"),
        ("xla_gpu_enable_command_buffer", "+FUSION,-CUBLAS"),
        ("xla_gpu_experimental_ragged_all_to_all_zero_copy", False),
        ("xla_gpu_memory_limit_slop_factor", 95),
        ("xla_hlo_profile", False),
        ("exec_time_optimization_effort", -0.5),
    ],
)
def test_plain_compiler_options_are_accepted(name, value):
    check_compiler_options({name: value})


WRONG_OPTIONS = [("a", None), ("a", [1]), (1, "a"), ("a", float("nan"))]


@pytest.mark.parametrize(("name", "value"), WRONG_OPTIONS)
def test_wrong_compiler_options_are_refused(name, value):
    with pytest.raises(TypeError, match=f"by name, got {re.escape(repr(name))}: .*; write"):
        check_compiler_options({"b": "x", "c": 1.5, "d": 2, name: value})


@pytest.mark.parametrize("name", ["x", "input_ids", "a.b-c", "0", "a" * 128])
def test_names(name):
    check_name(name, "an input")


@pytest.mark.parametrize("name", ["", ".hidden", "a/b", "a b", "é", "a" * 129, "a\n", 3, None])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match=r"the name of an input must have letters.*got .*; write"):
        check_name(name, "an input")


def test_host_functions_check_their_names():
    with pytest.raises(ValueError, match="the name of a host function"):
        HostFunction("../f", {})
    with pytest.raises(ValueError, match="a tensor of the host function 'f'"):
        HostFunction("f", {"a/b": Tensor((1,), "bytes")})

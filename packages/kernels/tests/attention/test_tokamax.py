# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
import importlib.util
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.attention.call import Inputs
from dovetail_kernels.attention.plan import plan_attention
from dovetail_kernels.attention.tokamax import TOKAMAX
from dovetail_kernels.dispatch import Device
from dovetail_kernels.testing.attention import cases, check, check_attention

_INSTALLED = importlib.util.find_spec("tokamax") is not None
_needs_tokamax = pytest.mark.skipif(
    not _INSTALLED, reason="needs the extra tokamax, on Python >= 3.12"
)
_CPU = Device(platform="cpu", kind="cpu")
_H100 = Device(platform="gpu", kind="NVIDIA H100 80GB HBM3")
_IDS = jax.ShapeDtypeStruct((2, 37), jnp.int32)
_LENGTHS = jax.ShapeDtypeStruct((2,), jnp.int32)
_SINKS = jax.ShapeDtypeStruct((4,), jnp.float32)


def _arrays(*, queries=37, keys=37, dtype=jnp.float32):
    rng = np.random.default_rng(0)
    shapes = (2, queries, 4, 16), (2, keys, 2, 16), (2, keys, 2, 24)
    return tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)


def _call(arrays, *, device=_CPU, **options):
    return dataclasses.replace(plan_attention(*arrays, **options).call, device=device)


def _tokamax(q, k, v, *, kv_lengths=None, **options):
    """As `attention`, by Tokamax or refused."""
    lengths = None if kv_lengths is None else jnp.asarray(kv_lengths)
    call = _call((q, k, v), kv_lengths=lengths, **options)
    if refusal := TOKAMAX.refuse(call):
        raise ValueError(refusal)
    return TOKAMAX.run(call, Inputs(q, k, v, kv_lengths=lengths))


@_needs_tokamax
@pytest.mark.parametrize(
    "options, reason",
    [
        ({"device": Device(platform="tpu", kind="TPU v5p")}, "on CPU only, got platform='tpu'"),
        ({"device": Device(platform="gpu", kind="NVIDIA A100-SXM4-40GB")}, "kind='NVIDIA A100"),
        ({"device": _H100, "dtype": jnp.float32}, "bfloat16, float16 on gpu, got dtype=float32"),
        ({"dtype": jnp.bfloat16}, "in float32 on cpu, got dtype=bfloat16"),
        ({"segment_ids": _IDS}, "segment_ids only as"),
        ({"positions": _IDS, "causal": True}, "positions only as"),
        ({"sinks": _SINKS}, "no sinks"),
        ({"mask": jax.ShapeDtypeStruct((2, 1, 1, 37), jnp.bool_)}, "averages hidden .* mask"),
        ({"bias": jax.ShapeDtypeStruct((1, 4, 37, 37), jnp.float32)}, "bias .* not compared"),
        ({"stats": True}, "does not return stats"),
        ({"window": 5, "kv_lengths": _LENGTHS}, "where window and kv_lengths"),
        (
            {"soft_cap": 3.0, "device": _H100, "dtype": jnp.bfloat16},
            "tanh to 11 bits on GPUs, got soft_cap=3.0",
        ),
    ],
)
def test_refuses(options, reason):
    dtype = options.get("dtype", jnp.float32)
    options = {name: value for name, value in options.items() if name != "dtype"}
    refusal = TOKAMAX.refuse(_call(_arrays(dtype=dtype), **options))
    assert re.search(reason, refusal or "")


@pytest.mark.skipif(_INSTALLED, reason="tokamax is installed")
def test_refuses_where_it_is_not_installed():
    refusal = TOKAMAX.refuse(_call(_arrays()))
    assert re.search(r"not installed. Use pip install 'dovetail-kernels\[tokamax\]'", refusal or "")


@_needs_tokamax
@pytest.mark.parametrize(
    "kind", ["NVIDIA H200", "NVIDIA GH200 480GB", "NVIDIA B200", "NVIDIA GB200"]
)
def test_takes_what_it_can_on_gpus(kind):
    device = Device(platform="gpu", kind=kind)
    call = _call(_arrays(dtype=jnp.bfloat16), device=device, causal=True, window=5)
    assert TOKAMAX.refuse(call) is None


# What it does of the suite on a CPU, where it is executed.
_SUPPORTS = {
    *("float32", "causal", "window", "two_sided_window", "kv_lengths", "soft_cap", "scale"),
    *("gqa", "cross", "odd", "value_width", "asymmetric_window"),
}


@_needs_tokamax
@pytest.mark.slow
def test_right_or_refused():
    check_attention(_tokamax, supports=_SUPPORTS)


@_needs_tokamax
@pytest.mark.parametrize("name", ["causal", "kv_lengths", "asymmetric window"])
def test_answers_and_gradients(name):
    case = next(case for case in cases() if case.name == name)
    check(_tokamax, case)


@_needs_tokamax
def test_leaves_argv_and_flags_to_the_program(monkeypatch):
    from absl import flags

    # An embedded Python has no argv; Tokamax would take argv[0].
    monkeypatch.setattr(sys, "argv", [])
    flags.FLAGS.unparse_flags()
    q, k, v = _arrays()
    gradient = jax.grad(lambda q: _tokamax(q, k, v, causal=True).sum())(q)
    assert np.isfinite(gradient).all()
    assert not flags.FLAGS.is_parsed()
    monkeypatch.setattr(sys, "argv", ["program", "--tokamax_cross_compile=nonsense"])
    flags.FLAGS(["program"])
    _tokamax(q, k, v, causal=True)
    assert flags.FLAGS.is_parsed()
    flags.FLAGS.unparse_flags()


@_needs_tokamax
def test_work_is_that_of_the_products():
    arrays = _arrays()
    work = TOKAMAX.work(_call(arrays))
    cost = jax.jit(_tokamax).lower(*arrays).compile()
    # Of width 16 + 24: XLA counts some 10 operations per logit beside the 80 of the products.
    assert work.flops == pytest.approx(cost.cost_analysis()["flops"], rel=0.25)
    memory = cost.memory_analysis()
    assert work.bytes == memory.argument_size_in_bytes + memory.output_size_in_bytes

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What is not known to be right on cuDNN is refused; what is passed to jax.nn means the same.

No cuDNN is here: jax.nn's own XLA path receives the arguments that cuDNN would.
"""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from dovetail_kernels import attention as attend
from dovetail_kernels import explain
from dovetail_kernels.attention.call import Inputs
from dovetail_kernels.attention.cudnn import dense
from dovetail_kernels.attention.plan import plan_attention
from dovetail_kernels.dispatch import Device
from dovetail_kernels.testing.attention import check_attention

H100 = Device(platform="gpu", kind="NVIDIA H100 80GB HBM3")
A100 = Device(platform="gpu", kind="NVIDIA A100-SXM4-80GB")


def call_of(q=(2, 64, 4, 64), s=64, g=64, dtype=jnp.bfloat16, device=H100, **options):
    q, k, v = (jax.ShapeDtypeStruct(x, dtype) for x in (q, (2, s, 2, q[3]), (2, s, 2, g)))
    return dataclasses.replace(plan_attention(q, k, v, **options).call, device=device)


IDS = jax.ShapeDtypeStruct((2, 64), jnp.int32)
LENGTHS = jax.ShapeDtypeStruct((2,), jnp.int32)
REFUSED = {
    "on cpu": ({"device": Device(platform="cpu", kind="cpu")}, "NVIDIA GPUs, not on cpu"),
    "another maker": ({"device": Device(platform="gpu", kind="AMD Instinct MI300X")}, "not AMD"),
    "too old": ({"device": Device(platform="gpu", kind="Tesla V100-SXM2-16GB")}, "not Tesla V100"),
    "float32": ({"dtype": jnp.float32}, "bfloat16 and float16, not float32"),
    "value width": ({"g": 32}, "as wide as keys, not 32 and 64"),
    "head_dim": ({"q": (2, 64, 4, 60), "g": 60}, "multiple of 8 up to 256, not 60"),
    "large head_dim": ({"q": (2, 64, 4, 264), "g": 264}, "up to 256, not 264"),
    "head_dim before Hopper": (
        {"q": (2, 64, 4, 192), "g": 192, "device": A100},
        "up to 128, not 192",
    ),
    "odd queries": ({"q": (2, 63, 4, 64)}, "odd lengths, T=63, S=64"),
    "odd keys": ({"s": 65}, "odd lengths, T=64, S=65"),
    "segments": ({"segment_ids": IDS}, "no segment_ids"),
    "positions": ({"positions": IDS}, "no positions"),
    "soft cap": ({"soft_cap": 2.0}, "no soft_cap"),
    "sinks": ({"sinks": jax.ShapeDtypeStruct((4,), jnp.float32)}, "no sinks"),
    "stats": ({"stats": True}, "no stats"),
    "mask": ({"mask": jax.ShapeDtypeStruct((2, 1, 1, 64), jnp.bool_)}, "no mask"),
    "bias": ({"bias": jax.ShapeDtypeStruct((1, 4, 64, 64), jnp.bfloat16)}, "no bias"),
    "asymmetric window": ({"window": (3, 5)}, "window needs causal=True"),
    "two-sided window": ({"window": 3}, "window needs causal=True"),
    "window and lengths": (
        {"window": 3, "causal": True, "kv_lengths": LENGTHS},
        "together with kv_l",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    options, reason = REFUSED[name]
    assert reason in (dense.refuse(call_of(**options)) or "not refused")


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"causal": True, "window": (4, 9)}, {"kv_lengths": LENGTHS}, {"s": 32}],
)
def test_taken(options):
    assert dense.refuse(call_of(**options)) is None
    assert dense.refuse(call_of(device=A100, **options)) is None


def through_jax_nn(monkeypatch):
    """cuDNN's call, with each option that it does not refuse, computed by jax.nn's XLA path."""
    original = jax.nn.dot_product_attention

    def xla(*arrays, implementation, **options):
        assert implementation == "cudnn"
        return original(*arrays, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", xla)

    def attention(q, k, v, *, kv_lengths=None, **options):
        call = plan_attention(q, k, v, kv_lengths=kv_lengths, **options).call
        reason = dense.refuse(dataclasses.replace(call, device=H100, dtype=jnp.dtype(jnp.bfloat16)))
        if reason:
            raise ValueError(reason)
        lengths = None if kv_lengths is None else jnp.asarray(kv_lengths)
        return dense.run(call, Inputs(q, k, v, kv_lengths=lengths))

    return attention


@pytest.mark.thorough
@pytest.mark.capability("attention by cuDNN")
def test_options_mean_to_jax_nn_what_they_mean_here(monkeypatch):
    """In float32, since what is tested is the meaning, not the rounding."""
    supports = {"float32", "causal", "window", "kv_lengths", "cross", "gqa", "scale"}
    check_attention(through_jax_nn(monkeypatch), supports=supports, grad=False)


@pytest.mark.parametrize("window, pairs", [(None, 64 * 65 // 2), (1, 64), (3, 62 * 3 + 3)])
def test_work_counts_visible_pairs(window, pairs):
    call = call_of(causal=True, window=window)
    work = dense.CUDNN.work(call)
    assert work.flops == 2 * 2 * 4 * pairs * 128
    assert work.bytes == 2 * 2 * 64 * (4 + 4 + 2 + 2) * 64


ABSENT = AbstractMesh((), (), abstract_device=AbstractDevice(H100.kind, None, "cuda"))


def _loss(q, k, v):
    out = attend(q, k, v, causal=True)
    assert (out.shape, out.dtype) == (q.shape, q.dtype)
    return out.astype(jnp.float32).sum()


def _foreign_calls(jaxpr):
    """Yields the foreign calls, also of jitted functions: JAX 0.12 inlines none of a gradient."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "ffi_call":
            yield eqn
        elif "jaxpr" in eqn.params:
            inner = eqn.params["jaxpr"]
            yield from _foreign_calls(getattr(inner, "jaxpr", inner))


def test_an_absent_gpu_gets_an_outline_with_the_results_and_flops_of_cudnn():
    q = jax.ShapeDtypeStruct((2, 64, 4, 32), jnp.bfloat16)
    k = jax.ShapeDtypeStruct((2, 64, 2, 32), jnp.bfloat16)
    with use_abstract_mesh(ABSENT):
        assert explain(attend, q, k, k, causal=True).selected == "cudnn"
        jaxpr = jax.make_jaxpr(jax.grad(_loss, (0, 1, 2)))(q, k, k)
        kept = jax.make_jaxpr(lambda *arrays: jax.vjp(_loss, *arrays)[1])(q, k, k).out_avals
    forward, backward = (dict(call.params["attributes"]) for call in _foreign_calls(jaxpr.jaxpr))
    product = 2 * 2 * 4 * (64 * 65 // 2) * 32  # of the scores on and below the diagonal
    assert forward == {"flops": 2 * product}
    assert backward == {"flops": 4 * product, "recomputed_flops": product}
    assert [x.shape for x in jaxpr.out_avals] == [q.shape, k.shape, k.shape]
    # cuDNN keeps its arguments, its result, and the log-sum-exp in float32.
    kept = {(x.shape, x.dtype.name) for x in kept}
    assert kept == {
        (q.shape, "bfloat16"),
        (k.shape, "bfloat16"),
        ((2, 4, 64), "float32"),
    }


@pytest.mark.capability("attention by cuDNN", on="cuda")
def test_an_outline_is_lowered_for_the_gpu_and_never_run():
    q = jnp.ones((1, 2, 1, 8), jnp.bfloat16)

    def outlined(q):
        call = dataclasses.replace(plan_attention(q, q, q).call, device=H100)
        return dense.run(call, Inputs(q, q, q))

    text = jax.jit(outlined).trace(q).lower(lowering_platforms=("cuda",)).as_text()
    assert "dovetail_kernels_outline_of_cudnn_attention" in text
    with pytest.raises(jax.errors.JaxRuntimeError, match="dovetail_kernels_outline_of_cudnn"):
        jax.jit(outlined)(q)

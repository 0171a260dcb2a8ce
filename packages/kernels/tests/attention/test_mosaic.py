# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import contextlib
import dataclasses
import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas
from jax.sharding import AbstractDevice, AbstractMesh

from dovetail_kernels.attention.api import attention
from dovetail_kernels.attention.blocked import NAME
from dovetail_kernels.attention.call import Inputs
from dovetail_kernels.attention.mosaic import MOSAIC
from dovetail_kernels.attention.plan import plan_attention
from dovetail_kernels.dispatch import Device
from dovetail_kernels.testing.attention import cases, check

# JAX 0.10 imports absl here, which it does not declare.
plgpu = pytest.importorskip("jax.experimental.pallas.mosaic_gpu")
_H100 = Device(platform="gpu", kind="NVIDIA H100 80GB HBM3")
_interpreted = pytest.mark.skipif(
    not hasattr(plgpu, "force_gpu_interpret_mode"),
    reason="needs jax >= 0.12, whose interpreter of GPU kernels is public",
)


def _shapes(*, batch=2, queries=200, keys=200, heads=4, kv_heads=2, width=64, value=64, dtype=None):
    dtype = dtype or jnp.bfloat16
    return (
        jax.ShapeDtypeStruct((batch, queries, heads, width), dtype),
        jax.ShapeDtypeStruct((batch, keys, kv_heads, width), dtype),
        jax.ShapeDtypeStruct((batch, keys, kv_heads, value), dtype),
    )


def _call(shapes, device=_H100, **options):
    return dataclasses.replace(plan_attention(*shapes, **options).call, device=device)


@contextlib.contextmanager
def _on_hopper():
    """As for `jax.export`: what is traced is for a GPU that is not here."""
    device = AbstractDevice(device_kind=_H100.kind, num_cores=None, platform="cuda")
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        yield


def _lowered(function, *shapes):
    with _on_hopper():
        return jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()


def _kernel(q, k, v, **options):
    """As `attention`, on a Hopper GPU."""

    def pair(ids):
        return ids if ids is None or isinstance(ids, tuple) else (ids, ids)

    given = {name: pair(options.get(name)) for name in ("segment_ids", "positions")}
    given |= {name: options.get(name) for name in ("kv_lengths", "sinks")}
    inputs = jax.tree.map(jnp.asarray, Inputs(q, k, v, **given))
    return MOSAIC.run(_call((q, k, v), **options), inputs)


def _run(q, k, v, **options):
    """The same in the interpreter."""
    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams()):
        return _kernel(q, k, v, **options)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"device": Device(platform="cpu", kind="cpu")}, "needs a Hopper GPU .* platform='cpu'"),
        ({"device": Device(platform="gpu", kind="NVIDIA A100-SXM4-40GB")}, "kind='NVIDIA A100"),
        ({"device": Device(platform="gpu", kind="NVIDIA B200")}, "kind='NVIDIA B200'"),
        ({"device": Device(platform="gpu", kind="AMD Instinct MI300X")}, "kind='AMD"),
        ({"dtype": jnp.float32}, "bfloat16 and float16, got dtype=float32"),
        ({"width": 96}, "64 or 128, got head_dim=96, value_dim=64"),
        ({"value": 256}, "64 or 128, got head_dim=64, value_dim=256"),
        ({"bias": jax.ShapeDtypeStruct((1, 4, 1, 200), jnp.float32)}, "not a bias or mask"),
        ({"mask": jax.ShapeDtypeStruct((2, 1, 1, 200), jnp.bool_)}, "not a bias or mask"),
    ],
)
def test_refuses(change, reason):
    device = change.pop("device", _H100)
    options = {name: change.pop(name) for name in ("bias", "mask") if name in change}
    refusal = MOSAIC.refuse(_call(_shapes(**change), device=device, **options))
    assert re.search(reason, refusal or "")


@pytest.mark.parametrize("kind", ["NVIDIA H100 PCIe", "NVIDIA H200", "NVIDIA GH200 480GB"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_takes_every_option_on_hopper(kind, dtype):
    ids = jax.ShapeDtypeStruct((2, 200), jnp.int32)
    options = {"causal": True, "window": 7, "segment_ids": ids, "positions": ids, "soft_cap": 3.0}
    options |= {"kv_lengths": jax.ShapeDtypeStruct((2,), jnp.int32), "stats": True}
    options |= {"sinks": jax.ShapeDtypeStruct((4,), jnp.float32)}
    call = _call(_shapes(dtype=dtype), device=Device(platform="gpu", kind=kind), **options)
    assert MOSAIC.refuse(call) is None


_OPTIONS = [
    pytest.param({}, {}, id="plain"),
    pytest.param(
        {"width": 128, "value": 128, "queries": 300, "keys": 300},
        {"causal": True, "window": 50, "soft_cap": 20.0, "scale": 0.1},
        id="widest",
    ),
    pytest.param({"width": 64, "value": 128, "keys": 300}, {"stats": True}, id="stats"),
]


def test_comes_before_blocked_on_hopper():
    found = []

    def look(q, k, v):
        found.extend(plan_attention(q, k, v).choices())
        return q

    with _on_hopper():
        jax.eval_shape(look, *_shapes())
    names = [choice.name for choice in found]
    assert names == ["cudnn", "tokamax", "cudnn_packed", "mosaic", "blocked", "reference"]
    assert next(choice for choice in found if choice.name == "mosaic").refusal is None


@pytest.mark.capability("attention on the tensor cores of Hopper", on="cuda")
@pytest.mark.parametrize("shapes, options", _OPTIONS)
def test_lowers_for_hopper(shapes, options):
    """To the kernel; more than that needs a GPU."""
    function = functools.partial(attention, impl="mosaic", **options)
    assert "mosaic_gpu" in _lowered(function, *_shapes(**shapes))


def test_the_kernel_says_its_cost():
    shapes = _shapes()
    work = MOSAIC.work(_call(shapes))
    pairs = work.flops // (2 * (64 + 64))
    estimate = pallas.CostEstimate(
        flops=work.flops, transcendentals=pairs, bytes_accessed=work.bytes
    )
    with _on_hopper():
        program = str(jax.make_jaxpr(functools.partial(attention, impl="mosaic"))(*shapes))
    # jax 0.10 has no argument for it.
    has_argument = "cost_estimate" in inspect.signature(plgpu.kernel).parameters
    assert (f"cost_estimate={estimate}" in program) == has_argument


@pytest.mark.thorough
@pytest.mark.capability("attention on the tensor cores of Hopper", on="cuda")
@pytest.mark.parametrize("transform", ["grad", "vmap", "checkpoint", "x64"])
def test_lowers_under(transform):
    ids = jnp.zeros((2, 200), jnp.int32)
    sinks = jnp.zeros(4)

    def function(q, k, v):
        return _kernel(q, k, v, causal=True, segment_ids=ids, sinks=sinks)

    def loss(q, k, v):
        inner = jax.checkpoint(function) if transform == "checkpoint" else function
        return inner(q, k, v).astype(jnp.float32).sum()

    shapes = _shapes()
    if transform == "vmap":
        shapes = tuple(jax.ShapeDtypeStruct((3, *x.shape), x.dtype) for x in shapes)
    of = {"x64": function, "vmap": jax.vmap(function)}.get(transform, jax.grad(loss, (0, 1, 2)))
    with jax.enable_x64(transform == "x64"):
        assert "mosaic_gpu" in _lowered(of, *shapes)


@pytest.mark.thorough
@pytest.mark.parametrize("names, forwards", [((NAME,), 1), ((), 2)])
def test_a_checkpoint_that_saves_its_name_runs_forward_once(names, forwards):
    policy = jax.checkpoint_policies.save_only_these_names(*names)

    @functools.partial(jax.checkpoint, policy=policy)
    def inner(q, k, v):
        return _kernel(q, k, v).astype(jnp.float32).sum()

    text = _lowered(jax.value_and_grad(inner, (0, 1, 2)), *_shapes())
    assert text.count("custom_call @mosaic_gpu") == forwards


@pytest.mark.thorough
def test_no_array_of_queries_by_keys():
    ids = jnp.zeros((2, 1100), jnp.int32)

    def loss(q, k, v):
        out = _kernel(q, k, v, causal=True, segment_ids=ids)
        return out.astype(jnp.float32).sum()

    text = _lowered(jax.grad(loss, (0, 1, 2)), *_shapes(queries=1100, keys=1100))
    assert "mosaic_gpu" in text
    assert "1100x1100" not in text
    assert "1152x1152" not in text


def _random(**shapes):
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=x.shape), x.dtype) for x in _shapes(**shapes))


def _fitted(case):
    """The case at a width and a dtype that the kernel has."""
    return dataclasses.replace(
        case,
        dtype="bfloat16",
        head_dim=64,
        value_dim=64 if case.value_dim == case.head_dim else 128,
    )


@pytest.mark.capability("attention on the tensor cores of Hopper")
@_interpreted
@pytest.mark.slow
@pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
def test_conforms(case):
    check(_run, _fitted(case))


@_interpreted
def test_what_is_not_finite_reaches_those_alone_who_see_it():
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(1, 40, 1, 64)), jnp.bfloat16) for _ in "qkv")
    segments = jnp.repeat(jnp.arange(4, dtype=jnp.int32), 10)[None]
    run = jax.jit(functools.partial(_run, causal=True, segment_ids=segments))
    clean = np.float32(run(q, k, v))[0, :, 0]
    out = run(q, k.at[0, 5, 0, 3].set(jnp.nan), v.at[0, 17, 0, 3].set(jnp.inf))
    out = np.float32(out)[0, :, 0]
    dirty = np.isnan(out).any(-1)
    np.testing.assert_array_equal(np.flatnonzero(dirty), [5, 6, 7, 8, 9, 17, 18, 19])
    np.testing.assert_array_equal(out[~dirty], clean[~dirty])


@pytest.mark.capability("attention on the tensor cores of Hopper")
@_interpreted
def test_gradients():
    check(_run, _fitted(next(case for case in cases() if case.name == "kv_lengths, causal")))


@_interpreted
@pytest.mark.slow
def test_vmap_is_a_batch():
    q, k, v = _random(queries=40, keys=40, heads=1, kv_heads=1)
    lengths = jnp.asarray([13, 30], jnp.int32)

    def run(q, k, v, lengths):
        return _run(q, k, v, kv_lengths=lengths)

    batch = jax.jit(run)(q, k, v, lengths)
    mapped = jax.jit(jax.vmap(run))(*(x[:, None] for x in (q, k, v, lengths)))
    np.testing.assert_array_equal(np.float32(mapped[:, 0]), np.float32(batch))


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 100}])
def test_work_is_that_of_the_products(options):
    shapes = _shapes(queries=512, keys=512)
    work = MOSAIC.work(_call(shapes, **options))
    reference = functools.partial(attention, impl="reference", **options)
    every = jax.jit(reference).lower(*shapes).compile().cost_analysis()
    # The reference forms all pairs. Blocks on and beside the diagonal: 10 of 16, with a window
    # both ways; with `causal` 10 of 16 too, all below it.
    share = 1.0 if not options else 10 / 16
    # Beside the products XLA counts some 20 operations per logit, against 256.
    assert share * every["flops"] == pytest.approx(work.flops, rel=0.1)


@pytest.mark.thorough
def test_work_counts_bytes_of_arguments_and_results():
    shapes = _shapes(value=128)
    options = {"stats": True}
    work = MOSAIC.work(_call(shapes, **options))
    reference = functools.partial(attention, impl="reference", **options)
    memory = jax.jit(reference).lower(*shapes).compile().memory_analysis()
    known = memory.argument_size_in_bytes + memory.output_size_in_bytes
    # The kernel writes the largest logit of each query, not of each head.
    assert known <= work.bytes <= known * 1.02
    hiding = MOSAIC.work(_call(shapes, causal=True, **options))
    # Keys and values once more written and read.
    assert hiding.bytes - work.bytes == 2 * sum(2 * x.size for x in shapes[1:])


@pytest.mark.thorough
def test_a_second_derivative_names_the_reference():
    def loss(q):
        return attention(q, q, q, impl="mosaic").astype(jnp.float32).sum()

    message = '^attention has first derivatives alone, .* Use impl="reference"'
    with _on_hopper(), pytest.raises(NotImplementedError, match=message):
        jax.eval_shape(jax.jit(jax.hessian(loss)), _shapes(heads=2)[0])

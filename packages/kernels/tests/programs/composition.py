# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every operation under transformations: `python composition.py TRANSFORMATION ...`.

Prints one JSON object: for each operation and transformation the largest difference from the call
on one device, of the result ("forward") and of the gradients ("gradient", null without one); or the
text of the error. That call is eager, but compiled for what runs on two devices. "cuda" and "tpu"
lower without running and give 0.

Operations take arrays that are split over two devices along the axes in `specs`. Gradients are
those of sum(sin(result)) by the arrays at `wrt`.
"""

import functools
import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, NamedSharding, PartitionSpec

from dovetail_kernels import (
    QuantizedPages,
    adjust_logits,
    attention,
    glu,
    grouped_matmul,
    layer_norm,
    linear_cross_entropy,
    linear_logprobs,
    pack_weights,
    paged_attention,
    paged_write,
    permute,
    quantized_matmul,
    rms_norm,
    rope,
    route_tokens,
    sample,
    token_logprobs,
    unpermute,
    warp_logits,
)

P = PartitionSpec
D = P("d")
DEVICES = {
    "cuda": AbstractDevice("NVIDIA H100 80GB HBM3", None, "cuda"),
    "tpu": AbstractDevice("TPU v5 lite", None, "tpu"),
}


class Case(NamedTuple):
    """One operation. `mapped` replaces it inside of a map over shards."""

    function: Callable[..., Any]
    arrays: tuple[jax.Array, ...]
    specs: tuple[PartitionSpec, ...]
    out: Any
    wrt: tuple[int, ...] = ()
    mapped: Callable[..., Any] | None = None


def normal(seed: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


def experts(x, w, gate):
    """A layer of experts: routing, permutation, grouped product and back."""
    weights, chosen = route_tokens(x @ gate, k=2)
    rows, sizes, plan = permute(x, chosen, count=w.shape[0])
    return unpermute(grouped_matmul(rows, w, sizes), plan, weights)


def cross_entropy(x, w, labels, **options):
    ce = linear_cross_entropy(x, w, labels, z_loss=0.1, **options)
    return ce.sum / ce.count


def head_logprobs(x, w, labels, **options):
    return jnp.stack(linear_logprobs(x, w, labels, **options), 1)


def vocabulary_cases(x, w, labels) -> dict[str, Case]:
    """The losses with columns of w split, not tokens. A map does not know it from the types."""
    split = functools.partial(functools.partial, vocab_mesh_axes="d")
    specs = (P(), P(None, "d"), P())
    return {
        f"{name}, vocabulary": Case(f, (x, w, labels), specs, P(), (0, 1), split(f))
        for name, f in (("linear_cross_entropy", cross_entropy), ("linear_logprobs", head_logprobs))
    }


def summed_cross_entropy(x, w, labels):
    ce = linear_cross_entropy(x, w, labels, z_loss=0.1)
    return jax.lax.psum(ce.sum, "d") / jax.lax.psum(ce.count, "d")


def drawn(logits, bits):
    keys = jax.random.wrap_key_data(bits)
    return sample(logits, keys=keys, temperature=0.8, top_k=9, top_p=0.9, min_p=0.01)


def adjusted(logits, words, counts):
    z = adjust_logits(
        logits,
        allowed=words,
        bias=(jnp.zeros((len(logits), 1), jnp.int32), logits[:, :1]),
        output_counts=counts,
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        presence_penalty=0.1,
    )
    return jnp.maximum(z, -50.0)  # the sine of -inf is NaN


def logprobs(logits, tokens):
    found = token_logprobs(logits, tokens, k=3)
    return jnp.concatenate([found.logprobs[:, None], found.top_logprobs], axis=1)


def attend(q, k, v, segments, sinks):
    return attention(q, k, v, causal=True, window=9, segment_ids=segments, sinks=sinks)


def attend_dense(q, k, v, mask, bias):
    return attention(q, k, v, window=(3, 7), mask=mask, bias=bias)


def pages_of(q, pages, **options):
    table, starts = jnp.array([[0, 1], [2, 3]]), jnp.array([0, 3, 4])
    return paged_attention(
        q, pages, page_table=table, kv_lengths=jnp.array([6, 5]), q_starts=starts, **options
    )


def codes_of(q, codes, scales):
    """Attention over codes, and its log-sum-exp as one more element."""
    out, lse = pages_of(q, QuantizedPages(codes=codes, scales=scales), lse=True)
    return jnp.concatenate([out, lse[..., None]], axis=-1)


def paged_cases() -> dict[str, Case]:
    """Returns the operations on a cache of pages."""
    pages, rows = normal(11, 5, 2, 4, 2, 8), normal(12, 4, 4, 8)
    heads = P(None, None, None, "d")
    codes, scales = jnp.round(30 * pages).astype(jnp.int8), jnp.abs(normal(19, *pages.shape[:-1]))
    return {
        "paged_attention": Case(pages_of, (rows, pages), (P(None, "d"), heads), P(None, "d")),
        "paged_attention, codes": Case(
            codes_of, (rows, codes, scales / 30), (P(None, "d"), heads, heads), P(None, "d")
        ),
        "paged_attention, latent": Case(
            lambda q, pages: pages_of(q, pages, value_width=5),
            (rows, pages[:, :1, :, :1]),
            (P(None, "d"), P()),
            P(None, "d"),
        ),
        "paged_write": Case(
            lambda p, k, v: paged_write(p, k, v, slots=jnp.array([0, 5, 9])),
            (pages, normal(15, 3, 2, 8), normal(16, 3, 2, 8)),
            (heads, P(None, "d"), P(None, "d")),
            heads,
            (0, 1, 2),
        ),
    }


def sampling_cases() -> dict[str, Case]:
    """Returns the steps from logits to a token and its log-probability."""
    logits, bits = normal(8, 6, 41), jax.random.key_data(jax.random.split(jax.random.key(9), 6))
    words = jax.random.randint(jax.random.key(19), (6, 2), 0, 2**31 - 1)
    counts = jax.random.randint(jax.random.key(20), (6, 41), 0, 3)
    return {
        "adjust_logits": Case(adjusted, (logits, words, counts), (D, D, D), D, (0,)),
        "sample": Case(drawn, (logits, bits), (D, D), D),
        "warp_logits": Case(lambda z: warp_logits(z, temperature=0.7, top_k=4), (logits,), (D,), D),
        "token_logprobs": Case(logprobs, (logits, jnp.arange(6)), (D, D), D, (0,)),
    }


def cases() -> dict[str, Case]:
    """Returns the operations with their arrays, of odd and unequal sizes where the split allows."""
    q, k, v = normal(0, 2, 20, 4, 8), normal(1, 2, 20, 2, 8), normal(2, 2, 20, 2, 6)
    segments = jnp.repeat(jnp.arange(4), 5)[None].repeat(2, 0)
    x, head = normal(3, 14, 6), normal(4, 6, 33)
    labels = jax.random.randint(jax.random.key(5), (14,), 0, 33)
    w, gate = normal(6, 3, 6, 5), normal(7, 6, 3)
    mask = jax.random.bernoulli(jax.random.key(19), 0.6, (2, 1, 20, 20))
    packed = {n: pack_weights(normal(10, 16, 10), bits=n, group_size=8) for n in (4, 8)}

    def product(bits):
        return lambda x: quantized_matmul(x, packed[bits], impl=("split", "blocks"))

    return {
        "attention": Case(
            attend, (q, k, v, segments, normal(13, 4)), (D, D, D, D, P()), D, (0, 1, 2, 4)
        ),
        "attention, bias and mask": Case(
            attend_dense,
            (q, k, v, mask, normal(20, 1, 4, 20, 20)),
            (D, D, D, D, P()),
            D,
            (0, 1, 2, 4),
        ),
        "linear_cross_entropy": Case(
            cross_entropy, (x, head, labels), (D, P(), D), P(), (0, 1), summed_cross_entropy
        ),
        "linear_logprobs": Case(head_logprobs, (x, head, labels), (D, P(), D), D, (0, 1)),
        **vocabulary_cases(x, normal(19, 6, 34), labels),
        "experts": Case(experts, (x, w, gate), (D, P(), P()), D, (0, 1, 2)),
        "quantized_matmul, 4 bits": Case(product(4), (normal(14, 6, 16),), (D,), D, (0,)),
        "quantized_matmul, 8 bits": Case(product(8), (normal(14, 6, 16),), (D,), D, (0,)),
        **sampling_cases(),
        **paged_cases(),
        "rms_norm": Case(
            lambda x, s: rms_norm(x, s, eps=1e-6), (x, normal(17, 6)), (D, P()), D, (0, 1)
        ),
        "layer_norm": Case(
            lambda x, s, b: layer_norm(x, s, b, eps=1e-6),
            (x, normal(17, 6), normal(18, 6)),
            (D, P(), P()),
            D,
            (0, 1, 2),
        ),
        "rope": Case(
            lambda q, at: rope(q, at, theta=1e4),
            (q, jnp.arange(20)[None].repeat(2, 0)),
            (D, D),
            D,
            (0,),
        ),
        "glu": Case(glu, (x, x + 1), (D, D), D, (0, 1)),
    }


def gradient(function, wrt):
    def loss(*arrays):
        return jnp.sum(jnp.sin(function(*arrays)))

    return jax.grad(loss, argnums=wrt)


def shard_mapped(case, kind):
    mesh = jax.make_mesh((2,), ("d",), axis_types=(kind,))
    return jax.shard_map(
        case.mapped or case.function, mesh=mesh, in_specs=case.specs, out_specs=case.out
    )


def twice(arrays):
    """Returns the arrays stacked with others of their kind: the rows are rolled."""
    return tuple(jnp.stack([a, jnp.roll(a, 1, 0)]) for a in arrays)


def transformed(name, case, function):
    """Returns the results of `function` under a transformation, and the eager ones to compare."""
    arrays = case.arrays
    if name in ("vmap", "scan"):
        expected = [function(*(a[i] for a in twice(arrays))) for i in range(2)]
        expected = jax.tree.map(lambda *a: jnp.stack(a), *expected)
        if name == "vmap":
            return jax.jit(jax.vmap(function))(*twice(arrays)), expected
        step = jax.jit(lambda all: jax.lax.scan(lambda c, a: (c, function(*a)), 0, all)[1])
        return step(twice(arrays)), expected
    if name in DEVICES:
        mesh = AbstractMesh((), (), abstract_device=DEVICES[name])
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
        with jax.sharding.use_abstract_mesh(mesh):
            jax.export.export(jax.jit(function), platforms=[name])(*shapes)
        return None, None
    expected = function(*arrays)
    if name == "eval_shape":
        shapes = jax.eval_shape(function, *arrays)
        same = jax.tree.map(lambda s, e: (s.shape, s.dtype) == (e.shape, e.dtype), shapes, expected)
        assert all(jax.tree.leaves(same)), shapes
        return expected, expected
    if name == "remat":
        return jax.jit(jax.checkpoint(function))(*arrays), expected
    if name == "cond":
        both = jax.jit(lambda p, *a: jax.lax.cond(p, function, lambda *a: function(*a), *a))
        return both(jnp.bool_(True), *arrays), expected
    if name == "export":
        exported = jax.export.export(jax.jit(function), platforms=["cpu", "cuda", "tpu"])(*arrays)
        return exported.call(*arrays), expected
    return jax.jit(function)(*arrays), expected


def placed(case, kind):
    """Returns the arrays, split over two devices."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(kind,))
    pairs = zip(case.arrays, case.specs, strict=True)
    return [jax.device_put(array, NamedSharding(mesh, spec)) for array, spec in pairs]


def on_mesh(name, case, wrt):
    """Returns the results on two devices, and those of a compiled call on one."""
    expected = jax.jit(gradient(case.function, wrt) if wrt else case.function)(*case.arrays)
    if name.startswith("shard_map"):
        kind = AxisType.Explicit if name.endswith("explicit") else AxisType.Auto
        function = shard_mapped(case, kind)
        function = gradient(function, wrt) if wrt else function
        arrays = case.arrays if kind == AxisType.Auto else placed(case, kind)
        return (function if name.endswith("eager") else jax.jit(function))(*arrays), expected
    kind = AxisType.Explicit if name == "explicit" else AxisType.Auto
    mesh = jax.make_mesh((2,), ("d",), axis_types=(kind,))
    function = gradient(case.function, wrt) if wrt else case.function
    with jax.sharding.set_mesh(mesh):
        return jax.jit(function)(*placed(case, kind)), expected


MESHES = ("shard_map", "shard_map eager", "shard_map explicit", "auto", "explicit")
ONE_DEVICE = ("jit", "vmap", "scan", "remat", "cond", "eval_shape", "export", "cuda", "tpu")


def difference(got, expected):
    """Returns the largest difference; of equal infinities it is 0."""
    if got is None:
        return 0.0
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    wide = [(jax.device_get(a).astype(float), jax.device_get(b).astype(float)) for a, b in pairs]
    apart = [(a[a != b], b[a != b]) for a, b in wide]  # equal infinities have no difference
    return max((float(abs(a - b).max()) for a, b in apart if a.size), default=0.0)


def measure(name, case, wrt):
    """Returns the largest difference, or the error's first line."""
    try:
        if name in MESHES:
            return difference(*on_mesh(name, case, wrt))
        function = gradient(case.function, wrt) if wrt else case.function
        return difference(*transformed(name, case, function))
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def main(names):
    table = {}
    for operation, case in cases().items():
        table[operation] = {
            name: {
                "forward": measure(name, case, ()),
                "gradient": measure(name, case, case.wrt) if case.wrt else None,
            }
            for name in names
        }
    print(json.dumps(table))


if __name__ == "__main__":
    main(sys.argv[1:] or [*ONE_DEVICE, *MESHES])

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The losses on eight devices with the vocabulary sharded: as on one. Prints "ok".

`python vocab_sharded.py SECTION ...` runs functions of `SECTIONS`.
"""

import dataclasses
import math
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import forced_devices
from dovetail_kernels import linear_cross_entropy, linear_logprobs
from dovetail_kernels.loss import implementations
from dovetail_kernels.loss.tiles import Tiles
from dovetail_kernels.testing import loss as suite

P = PartitionSpec
M, D, V = 96, 8, 1280
KEPT, AGAIN = None, 45_000  # bytes: one tile of kept logits; several tiles, formed twice
TOLERANCE = {"rtol": (M + V) * 2**-23, "atol": 1e-5}  # epsilon times the numbers of a sum
rng = np.random.default_rng(0)
x, w, bias = (rng.standard_normal(s, np.float32) for s in ((M, D), (D, V), (V,)))
labels, where = rng.integers(0, V, M).astype(np.int32), (rng.random(M) < 0.7).astype(np.float32)
factors = rng.standard_normal((2, M), np.float32)
arrays = (x, w, bias, where, labels, factors)


def outputs(x, w, bias, where, labels, factors, *, budget, names=None):
    options = {"bias": bias, "soft_cap": 3.0, "budget": budget, "vocab_mesh_axes": names}
    ce = linear_cross_entropy(x, w, labels, where=where, smoothing=0.1, z_loss=0.01, **options)
    logprobs = linear_logprobs(x, w, labels, where=where > 0, temperature=0.7, **options)
    per_token = jnp.sum(factors[0] * logprobs.logprob + factors[1] * logprobs.entropy)
    return ce.sum + 0.1 * per_token, (ce, logprobs)


def step(budget):
    def loss(*arrays):
        return outputs(*arrays, budget=budget)

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True))


alone = {budget: step(budget)(*arrays) for budget in (KEPT, AGAIN)}
forced_devices.stop_caching()


def same(got, budget, message):
    assert jax.tree.structure(got) == jax.tree.structure(alone[budget])
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(alone[budget]), strict=True):
        np.testing.assert_allclose(a, b, **TOLERANCE, err_msg=message)


def specs(tokens, columns):
    """Specs of `arrays`."""
    vocabulary = P(None, columns), P(columns)
    return P(tokens), *vocabulary, P(tokens), P(tokens), P(None, tokens)


def put(mesh, places, arrays=arrays):
    return [jax.device_put(a, NamedSharding(mesh, p)) for a, p in zip(arrays, places, strict=True)]


def collectives(compiled):
    """Returns the sizes of the arrays that devices exchange; a loop's body counts once."""
    text, sizes = compiled.as_text(), []
    for result, name in re.findall(r"= (.+?) (all-[a-z-]+|reduce-[a-z-]+|coll[a-z-]+)\(", text):
        if name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all"):
            shapes = re.findall(r"[a-z]+\d+\[([\d,]*)\]", result)
            sizes += [(name, math.prod(map(int, filter(None, s.split(","))))) for s in shapes]
    return sizes


def explicit():
    mesh = jax.make_mesh((2, 4), ("data", "tensor"))
    every = ("data", "tensor")
    with jax.sharding.set_mesh(mesh):
        for tokens, columns, budget in (
            ("data", "tensor", AGAIN),
            (None, every, KEPT),
        ):
            places = specs(tokens, columns)
            got = step(budget)(*put(mesh, places))
            same(got, budget, f"Explicit, {tokens}, {columns}, {budget}")
            for gradient, place in zip(got[1], places, strict=False):
                expected = NamedSharding(mesh, place)
                assert gradient.sharding.is_equivalent_to(expected, gradient.ndim), gradient
        whole_w = put(mesh, (*specs("data", "tensor")[:1], P(), *specs("data", "tensor")[2:]))
        same(step(KEPT)(*whole_w), KEPT, "the bias alone is sharded")


def shard_mapped():
    mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    for tokens, columns in (("data", "tensor"), (None, ("data", "tensor"))):

        def body(*arrays, tokens=tokens, columns=columns):
            loss, (ce, logprobs) = outputs(*arrays, budget=AGAIN, names=columns)
            if tokens:
                loss, ce = jax.lax.psum((loss, ce), tokens)
            return loss, (ce, logprobs)

        def gradients(*arrays, body=body):
            return jax.value_and_grad(body, argnums=(0, 1, 2, 3), has_aux=True)(*arrays)

        places = specs(tokens, columns)
        out = (P(), (P(), P(tokens)))
        if tokens:
            step = jax.shard_map(gradients, mesh=mesh, in_specs=places, out_specs=(out, places[:4]))
        else:  # gradients of the map, not in it
            step = jax.shard_map(body, mesh=mesh, in_specs=places, out_specs=out)
            step = jax.value_and_grad(step, argnums=(0, 1, 2, 3), has_aux=True)
        same(jax.jit(step)(*arrays), AGAIN, f"shard_map, {tokens}, {columns}")


def mapped_over_one_axis():
    """The map takes the vocabulary's axis. Tokens stay with the partitioner; none is gathered."""
    mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)

    def body(*arrays):
        return outputs(*arrays, budget=AGAIN, names="tensor")

    with jax.sharding.set_mesh(mesh):
        mapped = jax.shard_map(
            body, in_specs=specs(None, "tensor"), out_specs=P(), axis_names={"tensor"}
        )
        step = jax.jit(jax.value_and_grad(mapped, argnums=(0, 1, 2, 3), has_aux=True))
        given = put(mesh, specs("data", "tensor"))
        compiled = step.lower(*given).compile()
        same(compiled(*given), AGAIN, "a map over one axis")
    assert {name for name, _ in collectives(compiled)} == {"all-reduce"}


def gathered_tokens():
    """Tokens are sharded over the vocabulary's axis, and gathered before the loss."""
    mesh = jax.make_mesh((8,), ("tensor",), axis_types=(AxisType.Auto,))

    def body(x, w, bias, where, labels, factors):
        tokens = [jax.lax.all_gather(a, "tensor", tiled=True) for a in (x, where, labels)]
        factors = jax.lax.all_gather(factors, "tensor", axis=1, tiled=True)
        x, where, labels = tokens
        _, (ce, logprobs) = outputs(
            x, w, bias, where, labels, factors, budget=AGAIN, names="tensor"
        )
        mine = jax.lax.axis_index("tensor") == 0  # each device has the sum: it counts once
        weighted = jnp.where(mine, jnp.sum(factors * jnp.stack(logprobs)), 0)
        return ce.sum + 0.1 * jax.lax.psum(weighted, "tensor"), (ce, logprobs)

    out = (P(), (P(), P()))
    mapped = jax.shard_map(body, mesh=mesh, in_specs=specs("tensor", "tensor"), out_specs=out)
    step = jax.value_and_grad(mapped, argnums=(0, 1, 2, 3), has_aux=True)
    same(jax.jit(step)(*arrays), AGAIN, "gathered tokens")


def exchanged():
    """Two arrays of numbers per token, for each at most 4; the gradient of x; no w, no logits.

    The index of the largest logit would be a third, but nothing uses it.
    """
    mesh = jax.make_mesh((8,), ("tensor",))

    def loss(x, w, bias, budget):
        return linear_cross_entropy(x, w, labels, bias=bias, smoothing=0.1, budget=budget).sum

    for budget in (KEPT, AGAIN):
        with jax.sharding.set_mesh(mesh):
            shards = put(mesh, specs(None, "tensor")[:3], (x, w, bias))
            forward = jax.jit(loss, static_argnums=3).lower(*shards, budget).compile()
            step = jax.jit(jax.grad(loss, argnums=(0, 1, 2)), static_argnums=3)
            both = step.lower(*shards, budget).compile()
        for compiled, gradients in ((forward, 0), (both, 1)):
            sizes = collectives(compiled)
            assert {name for name, _ in sizes} == {"all-reduce"}, sizes
            large = [size for _, size in sizes if size > 4 * M]
            assert large == [M * D] * gradients, sizes
            assert len(sizes) == 2 + gradients, sizes


def memory():
    """Arguments, results and temporary arrays of a device are divided by the shards.

    Not divided: a tile of logits and its gradient (512 x 1024), twice for copies, and x.
    """
    tokens, width, vocabulary = 1024, 64, 32768
    shapes, sizes = [(tokens, width), (width, vocabulary)], []

    def loss(x, w):
        return linear_cross_entropy(x, w, jnp.zeros(tokens, jnp.int32)).sum

    for shards in (1, 2, 8):
        mesh = jax.make_mesh((shards,), ("tensor",), devices=jax.devices()[:shards])
        with jax.sharding.set_mesh(mesh):
            shardings = [NamedSharding(mesh, P()), NamedSharding(mesh, P(None, "tensor"))]
            given = [
                jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
                for shape, sharding in zip(shapes, shardings, strict=True)
            ]
            compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(*given).compile()
        analysis = compiled.memory_analysis()
        sizes.append(
            analysis.argument_size_in_bytes
            + analysis.output_size_in_bytes
            + analysis.temp_size_in_bytes
        )
    for shards, size in zip((1, 2, 8), sizes, strict=True):
        assert size <= sizes[0] / shards + 3 * 512 * 1024 * 4, sizes


def refusal(call):
    try:
        call()
    except ValueError as error:
        return str(error)
    return "not refused"


def refusals():
    kind = AxisType.Explicit
    mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(kind, kind))
    with jax.sharding.set_mesh(mesh):
        tokens, head, ids = put(mesh, (P("tensor"), P(None, "tensor"), P()), (x, w, labels))
        message = refusal(lambda: linear_cross_entropy(tokens, head, ids))
        assert "got m and v sharded over 'tensor'. Use jax.sharding.reshard" in message, message
        whole = jax.sharding.reshard(tokens, P())
        message = refusal(lambda: linear_logprobs(whole, head, ids, impl="reference"))
        assert "whole vocabulary on a device, and w is split over tensor. To" in message, message
        message = refusal(lambda: linear_logprobs(whole, head, ids, vocab_mesh_axes="tensor"))
        assert "axes of the jax.shard_map around the call, [], got vocab_mesh_axes='tensor'. " in (
            message
        ), message
        message = refusal(lambda: jax.device_put(w[:, :1278], head.sharding))
        assert "does not evenly divide the dimension size 1278" in message, (
            message
        )  # JAX's own: pad the vocabulary

    def mapped(columns, name="tensor", **options):
        def body(x, w):
            return linear_cross_entropy(x, w, labels, vocab_mesh_axes=name).sum

        auto = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
        places = P(), P(None, columns)
        jax.shard_map(body, mesh=auto, in_specs=places, out_specs=P(), **options)(x, w)

    message = refusal(lambda: mapped(None))
    assert "got w equal on all devices of vocab_mesh_axes='tensor'. Name" in message, message
    message = refusal(lambda: mapped("tensor", name="model"))
    assert "['data', 'tensor'], got vocab_mesh_axes='model'. Leave it out" in message, message
    message = refusal(lambda: mapped("tensor", check_vma=False))
    assert "got vocab_mesh_axes='tensor' with check_vma=False. Leave" in message, message


def conformance(names=("ties", "everything", "everything in bfloat16", "mask")):
    """The public suites, on a function that shards tokens over two devices and columns over four.

    Sizes are rounded up to multiples of these. No names: all cases.
    """
    mesh = jax.make_mesh((2, 4), ("data", "tensor"))

    def sharded(operation):
        def call(x, w, labels, *, where=None, bias=None, **options):
            columns = P(None, "tensor") if options.get("vocab_axis", 1) == 1 else P("tensor")
            x, labels = jax.sharding.reshard((x, labels), (P("data"), P("data")))
            w = jax.sharding.reshard(w, columns)
            where = None if where is None else jax.sharding.reshard(where, P("data"))
            bias = None if bias is None else jax.sharding.reshard(bias, P("tensor"))
            result = operation(x, w, labels, where=where, bias=bias, **options)
            return jax.sharding.reshard(result, P())

        return call

    for cases, check, operation in (
        (suite.cases(), suite.check, linear_cross_entropy),
        (suite.logprob_cases(), suite.check_logprobs, linear_logprobs),
    ):
        for case in cases:
            if names and case.name not in names:
                continue
            tokens, width, columns = case.shape
            shape = (tokens + tokens % 2, width, columns + -columns % 4)
            with jax.sharding.set_mesh(mesh):
                check(sharded(operation), dataclasses.replace(case, shape=shape))


def whole_tiles():
    """With the tiles of a GPU, two a device: all of its columns. No section may follow."""
    implementations.tiles_of = lambda call, tokens: Tiles(
        rows=-(-tokens // 2), columns=call.columns, keep=False, whole=True
    )
    jax.clear_caches()
    conformance(("ties", "everything"))


def every_case():
    conformance(())


SECTIONS = {
    section.__name__: section
    for section in (
        explicit,
        shard_mapped,
        mapped_over_one_axis,
        gathered_tokens,
        exchanged,
        memory,
        refusals,
        conformance,
        whole_tiles,
        every_case,
    )
}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        SECTIONS[name]()
    print("ok")

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The work that tiles do. Their answers are checked by the suite, in test_api.py."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Literal
from jax.test_util import check_grads

from dovetail_kernels.dispatch import Device
from dovetail_kernels.grouped import tiles
from dovetail_kernels.grouped.api import grouped_matmul
from dovetail_kernels.grouped.call import GroupedMatmulCall

D, F = 6, 4


def executed(function, *args):
    """(name, shapes of the inputs) of each operation that is executed, in order.

    Runs the traced program, equation by equation. XLA's count takes a loop's body once.
    """
    found = []
    closed = jax.make_jaxpr(function)(*args)
    evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(args), found)
    return found


def products(found):
    return [shapes for name, shapes in found if name == "dot_general"]


def evaluate(jaxpr, consts, args, found):
    names = [*jaxpr.constvars, *jaxpr.invars]
    values = dict(zip(names, [*consts, *args], strict=True))

    def read(name):
        return name.val if isinstance(name, Literal) else values[name]

    for equation in jaxpr.eqns:
        inputs = [read(name) for name in equation.invars]
        outputs = result(equation, inputs, found)
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(name) for name in jaxpr.outvars]


def result(equation, inputs, found):
    primitive, params = equation.primitive, equation.params
    if primitive.name == "while":
        return loop(inputs, found, **params)
    inner = [value for value in params.values() if isinstance(value, ClosedJaxpr)]
    if inner:
        return evaluate(inner[0].jaxpr, inner[0].consts, inputs, found)
    found.append((primitive.name, tuple(jnp.shape(value) for value in inputs)))
    out = primitive.bind(*inputs, **params)
    return out if primitive.multiple_results else [out]


def loop(inputs, found, *, cond_jaxpr, body_jaxpr, cond_nconsts, body_nconsts):
    test, rest = inputs[:cond_nconsts], inputs[cond_nconsts:]
    fixed, state = rest[:body_nconsts], rest[body_nconsts:]
    while evaluate(cond_jaxpr.jaxpr, cond_jaxpr.consts, [*test, *state], found)[0]:
        state = evaluate(body_jaxpr.jaxpr, body_jaxpr.consts, [*fixed, *state], found)
    return state


def arguments(rows, sizes):
    rng = np.random.default_rng(0)
    draw = [rng.standard_normal(s) for s in ((rows, D), (len(sizes), D, F), (rows, F))]
    return *(jnp.asarray(a, jnp.float32) for a in draw), jnp.asarray(sizes, jnp.int32)


SPLITS = [
    (60, (0, 11, 0, 24, 25)),
    (3, (0, 2, 0, 0, 1, 0, 0)),
]


@pytest.mark.thorough
@pytest.mark.parametrize("rows, sizes", SPLITS)
def test_work_is_that_of_the_tiles_of_groups_that_have_rows(rows, sizes):
    x, w, g, sizes_array = arguments(rows, sizes)
    tile = tiles.tile_rows(rows, len(sizes))
    count = sum(math.ceil(size / tile) for size in sizes)
    forward = [((tile, D), (D, F))] * count
    found = executed(tiles._multiply, x, w, sizes_array)
    assert products(found) == forward
    # A matrix is copied once for each group that has rows, and never for another.
    cuts = [shapes[0] for name, shapes in found if name == "dynamic_slice"]
    assert cuts.count(w.shape) == sum(size > 0 for size in sizes)

    def both(x, w, sizes, g):
        return jax.vjp(lambda x, w: tiles._multiply(x, w, sizes), x, w)[1](g)

    # The gradient alone is as much work again for each of x and w.
    back = [((tile, F), (D, F))] * count + [((tile, D), (tile, F))] * count
    assert products(executed(both, x, w, sizes_array, g)) == forward + back
    assert count <= tiles.most_tiles(rows, len(sizes))


def worst(rows, count):
    """Every group that can holds one row more than whole tiles."""
    some, tile = min(rows, count), tiles.tile_rows(rows, count)
    sizes = np.zeros(count, int)
    sizes[:some] = 1
    left = rows - some
    sizes[0] += left // tile * tile
    sizes[some - 1] += left % tile
    return sizes


@pytest.mark.parametrize("rows, count", [(60, 5), (3, 7)])
def test_the_stated_work_is_that_of_the_worst_sizes(rows, count):
    sizes = worst(rows, count)
    assert sizes.sum() == rows
    x, w, _, sizes_array = arguments(rows, sizes)
    found = products(executed(tiles._multiply, x, w, sizes_array))
    device = Device(platform="cpu", kind="cpu")
    options = {"rows": rows, "inner": D, "outer": F, "count": count, "dtype": "float32"}
    work = tiles.TILES.work(GroupedMatmulCall(**options, device=device))
    assert work.flops == sum(2 * math.prod(left) * right[1] for left, right in found)


def test_no_split_does_more_than_the_worst():
    rng = np.random.default_rng(0)
    for _ in range(300):
        rows, count = int(rng.integers(0, 400)), int(rng.integers(1, 30))
        sizes = rng.multinomial(rows, rng.dirichlet(np.full(count, 0.3)))
        tile = tiles.tile_rows(rows, count)
        done = int(np.ceil(sizes / tile).sum())
        assert done <= tiles.most_tiles(rows, count)
        # The bound of the architecture: a tile more than M / tile for each group at most.
        assert tiles.most_tiles(rows, count) <= rows / tile + count


def test_the_height_of_a_tile():
    pairs = {(4096, 8): 128, (4096, 64): 64, (4096, 65): 64, (100, 8): 16, (5, 8): 8, (0, 1): 8}
    assert {pair: tiles.tile_rows(*pair) for pair in pairs} == pairs


@pytest.mark.thorough
def test_bytes_are_near_those_that_are_compiled():
    rows, count, inner, outer = 512, 4, 96, 160
    shapes = ((rows, inner), (count, inner, outer))
    x, w = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    sizes = jax.ShapeDtypeStruct((count,), jnp.int32)
    memory = jax.jit(tiles._multiply).lower(x, w, sizes).compile().memory_analysis()
    # Copies of x and of the result with a tile more, and one matrix; never one of all of w, nor
    # E copies of x. What XLA adds for the loops is below a tenth.
    tile = tiles.tile_rows(rows, count)
    copies = 4 * ((rows + tile) * (inner + outer) + inner * outer)
    assert memory.temp_size_in_bytes <= 1.1 * copies + 4 * tile * (inner + outer)
    device = Device(platform="cpu", kind="cpu")
    options = {"rows": rows, "inner": inner, "outer": outer, "count": count}
    call = GroupedMatmulCall(**options, dtype="float32", device=device)
    moved = memory.argument_size_in_bytes + memory.output_size_in_bytes
    moved += 2 * memory.temp_size_in_bytes + 2 * 4 * (count - 1) * inner * outer
    assert 0.8 < tiles.TILES.work(call).bytes / moved < 1.25


@pytest.mark.thorough
def test_gradients_of_few_rows():
    x, w, _, sizes = arguments(9, (4, 0, 5))
    run = jax.jit(lambda x, w: grouped_matmul(x, w, sizes))
    # Differences of float32: about eps ** (2 / 3).
    check_grads(run, (x, w), order=1, modes=["rev"], rtol=2e-2)


@pytest.mark.thorough
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_sizes_that_the_compiler_knows(rows):
    """XLA before jax 0.12 left out the loop over one tile of one row."""
    x = jax.random.normal(jax.random.key(0), (rows, 16))
    w = jax.random.normal(jax.random.key(1), (3, 16, 5))
    sizes = np.array([0, 0, rows], np.int32)

    def loss(x, w):
        return jnp.sum(jnp.sin(grouped_matmul(x, w, jnp.asarray(sizes), impl="tiles")))

    found = jax.jit(jax.grad(loss, argnums=(0, 1)))(x, w)
    wide = [np.asarray(array, np.float64) for array in (x, w)]
    g = np.cos(wide[0] @ wide[1][2])
    np.testing.assert_allclose(found[0], g @ wide[1][2].T, rtol=0, atol=1e-5)
    np.testing.assert_allclose(found[1][2], wide[0].T @ g, rtol=0, atol=1e-5)
    assert not found[1][:2].any()

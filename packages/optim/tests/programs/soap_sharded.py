# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""SOAP on eight devices as on one, its state placed by `state_shardings`, on meshes of the axis
types argv[1:]. Prints "ok", or fails.

In float64: gradients drift, and each refresh sorts the columns of its bases.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import forced_devices
from dovetail_optim.compressing.sharding import init, state_shardings
from dovetail_optim.matrix.soap import soap

jax.config.update("jax_enable_x64", True)
P = PartitionSpec
MATRIX = [("q", "l i h d -> l h, i, d"), ("head", "i o -> , i, o"), ("**", "l i o -> l, i, o")]
# Square, as one gradient makes the first basis: where its product has no rank any vectors serve.
SHAPES = {
    "up": ((3, 8, 8), P(None, "fsdp", "tensor")),
    "experts": ((8, 6, 6), P(("data", "fsdp", "tensor"))),
    "q": ((2, 8, 4, 8), P(None, "fsdp", "tensor")),
    "head": ((8, 20), P("fsdp")),  # its longer side is not turned
}


def draw(seed):
    """Columns and rows of sizes that move along with the seed."""
    rng, tree = np.random.default_rng(seed), {}
    for name, (shape, _) in SHAPES.items():
        sizes = [2.0 ** np.sin(seed + 2.0 * np.arange(n)) for n in shape[-2:]]
        tree[name] = rng.standard_normal(shape) * sizes[0][:, None] * sizes[1]
    return tree


def steps(begin, place):
    """Parameters and state after twelve steps: bases are made, then refreshed in turns."""

    @jax.jit
    def step(params, state, grads):
        updates, state = TX.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    params = place(draw(0))
    state = begin(params)
    for seed in range(1, 13):
        params, state = step(params, state, place(draw(seed)))
    return params, state


TX = soap(0.1, matrix=MATRIX, refresh=2, max_dim=16, weight_decay=0.1)
alone, last = steps(TX.init, lambda tree: jax.tree.map(jnp.asarray, tree))
for vectors, gram in zip(*map(jax.tree.leaves, (last.left, last.left_gram)), strict=True):
    eigenvalues = jnp.einsum("bij,bik,bkj->bj", vectors, gram, vectors)
    assert (jnp.diff(eigenvalues) > 0).any()  # some columns were sorted and put back
forced_devices.stop_caching()
KINDS = {
    "auto": (AxisType.Auto,) * 3,
    "explicit": (AxisType.Explicit,) * 3,
    "mixed": (AxisType.Explicit, *(AxisType.Auto,) * 2),
}
for kinds in map(KINDS.__getitem__, sys.argv[1:]):
    mesh = jax.make_mesh((2, 2, 2), ("fsdp", "tensor", "data"), axis_types=kinds)
    shardings = {k: NamedSharding(mesh, spec) for k, (_, spec) in SHAPES.items()}

    def put(tree):
        return {k: jax.device_put(x, shardings[k]) for k, x in tree.items()}  # noqa: B023

    found, state = steps(lambda params: init(TX, params), put)
    planned = state_shardings(TX, put(draw(0)))
    assert planned.nu["up"].spec == P(None, "fsdp", "tensor")
    assert planned.left_gram["head"].spec == P(None, "fsdp", None)
    for x, at in zip(jax.tree.leaves(state), jax.tree.leaves(planned), strict=True):
        if AxisType.Auto not in kinds:  # where the compiler chooses no axis
            assert x.sharding.is_equivalent_to(at, x.ndim), (x.shape, x.sharding, at)
    for k, x in found.items():
        # float64; sums in another order turn the least eigenvalues' vectors most.
        np.testing.assert_allclose(x, alone[k], rtol=0, atol=1e-9, err_msg=str((kinds, k)))
print("ok")

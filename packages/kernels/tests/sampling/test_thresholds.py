# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The searches for a GPU, with a fixed number of passes, against those with a loop, bit by bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, PartitionSpec

from dovetail_kernels.sampling.api import sample, warp_logits
from dovetail_kernels.sampling.thresholds import warp

H200 = AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="cuda")
ROWS, VOCABULARY = 6, 1031
looped = jax.jit(functools.partial(warp, unrolled=False))
unrolled = jax.jit(functools.partial(warp, unrolled=True))


def logits_of(kind, rng):
    z = rng.standard_normal((ROWS, VOCABULARY)).astype("f4")
    if kind == "ties":
        return np.round(z * 4) / 4
    if kind == "adjacent":
        return 1 + z * np.float32(1e-6)
    if kind == "extreme":
        return z * np.float32(1e37) ** rng.choice([-1, 1], z.shape).astype("f4")
    z *= 3
    if kind == "excluded":
        z[rng.random(z.shape) < 0.3] = -np.inf
    if kind == "no distribution":
        z[0, 1030], z[1, 7], z[2] = np.nan, np.inf, -np.inf
    return z


def options_of(rng):
    return (
        rng.choice([0, 0.3, 1, 2.5], ROWS).astype("f4"),
        rng.choice([0, 1, 2, 40, 1030, 1031, 5000], ROWS).astype("i4"),
        rng.choice([0.01, 0.5, 0.9, 0.999, 1], ROWS).astype("f4"),
        rng.choice([0, 0.02, 0.3, 1], ROWS).astype("f4"),
    )


@pytest.mark.thorough
@pytest.mark.capability("sampling by temperature, top-k, top-p and min-p", on="cuda")
@pytest.mark.parametrize(
    "kind", ["normal", "ties", "adjacent", "extreme", "excluded", "no distribution"]
)
def test_a_fixed_number_of_passes_keeps_the_same_tokens(kind):
    rng = np.random.default_rng(len(kind))
    for _ in range(20):
        z, options = logits_of(kind, rng), options_of(rng)
        np.testing.assert_array_equal(unrolled(z, *options), looped(z, *options))


@pytest.mark.thorough
def test_options_out_of_range_and_of_nan_end():
    z = logits_of("normal", np.random.default_rng(1))
    temperature = np.array([1, -1, np.nan, 1, 1, 1], "f4")
    top_p = np.array([0.9, 0.9, 0.9, np.nan, 0, 2], "f4")
    warped = np.asarray(unrolled(z, temperature, np.full(6, 9, "i4"), top_p, np.zeros(6, "f4")))
    assert np.isnan(warped).all(axis=1).tolist() == [False, True, True, True, True, True]


@pytest.mark.thorough
def test_the_passes_compose():
    """Inside vmap and that inside shard_map."""
    rng = np.random.default_rng(2)
    z, options = logits_of("ties", rng), options_of(rng)
    want = looped(z, *options)
    each = jax.vmap(lambda *row: warp(*(x[None] for x in row), unrolled=True)[0])
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(AxisType.Auto,))
    specs = {"in_specs": PartitionSpec("rows"), "out_specs": PartitionSpec("rows")}
    mapped = jax.shard_map(each, mesh=mesh, **specs)
    np.testing.assert_array_equal(jax.jit(mapped)(z, *options), want)


@pytest.mark.capability("sampling by temperature, top-k, top-p and min-p", on="cuda")
def test_sampling_on_a_gpu_has_no_loop_and_no_conditional():
    """The host waits for the device before a branch, and before each turn of such a loop."""
    z = jax.ShapeDtypeStruct((4, 300), jnp.bfloat16)
    row = jax.ShapeDtypeStruct((4,), jnp.float32)
    data = jax.ShapeDtypeStruct((4, 2), jnp.uint32)

    def step(z, data, t, k, p, m):
        options = {"temperature": t, "top_k": k.astype(jnp.int32), "top_p": p, "min_p": m}
        warped = warp_logits(z, **options)
        return warped, sample(z, keys=jax.random.wrap_key_data(data), **options)

    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=H200)):
        traced = jax.jit(step).trace(z, data, row, row, row, row)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.reduce" in text
    assert not [name for name in ("while", "case", "if") if f"stablehlo.{name}" in text]

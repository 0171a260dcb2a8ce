# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The functions that a program calls outside of jit, under a guard against implicit transfers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dovetail_optim as do

_SCHEDULE = do.wsd(0.02, warmup=10, total=200, cooldown=50)
_ANY = {
    "route": lambda: do.route([("**.kernel", do.muon(0.02)), ("**", optax.adamw(1e-3))]),
    "guard": lambda: do.guard(optax.adamw(_SCHEDULE)),
    "accumulate": lambda: do.accumulate(optax.adamw(1e-3), every=2),
    "compress": lambda: do.compress(optax.adamw(1e-3)),
    "decay": lambda: do.decay(0.1),
    "split_master": lambda: do.split_master(optax.adamw(1e-3)),
    "stochastic_round": lambda: do.stochastic_round(optax.adamw(1e-3), seed=0),
    "watch": lambda: do.watch(optax.adamw(1e-3)),
    "step": lambda: do.Step(optax.adamw(1e-3)),
}
_OF_MATRICES = {"muon": lambda: do.muon(0.02), "soap": lambda: do.soap(0.02, max_dim=64)}


@pytest.mark.capability("optimizers start under a guard against transfers")
@pytest.mark.parametrize("width", [200, 256])
@pytest.mark.parametrize("name", [*_ANY, *_OF_MATRICES])
def test_a_state_begins_under_a_guard_against_transfers(name, width):
    params = {"layer": {"kernel": jnp.ones((width, width), jnp.bfloat16)}}
    if name in _ANY:
        params["layer"] |= {"bias": jnp.ones(width), "scale": jnp.ones(())}
    tx = (_ANY | _OF_MATRICES)[name]()
    with jax.transfer_guard("disallow"):
        state = tx.init(params)
    jax.tree.map(np.testing.assert_array_equal, state, tx.init(params))


@pytest.mark.parametrize("zero", [None, "data"])
def test_a_placed_state_with_scalars_begins_under_a_guard_too(zero):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    params = {"kernel": jnp.ones((256, 256)), "bias": jnp.ones(256), "scale": jnp.ones(())}
    params = jax.device_put(params, whole)
    with jax.transfer_guard("disallow"):
        state = do.init(do.compress(optax.adamw(1e-3)), params, zero=zero)
    mu = state.inner[0].mu
    assert [mu[name].codes.shape for name in ("kernel", "bias", "scale")] == [
        (256, 256),
        (256,),
        (),
    ]


def test_schedules_and_polar_factors_work_under_a_guard():
    x = jax.random.normal(jax.random.key(0), (200, 256))
    with jax.transfer_guard("disallow"):
        rates = [_SCHEDULE(0), _SCHEDULE(5), _SCHEDULE(np.int32(100))]
        tokens = do.by_tokens(_SCHEDULE, per_step=10)(1)
        u = do.orthogonalize(x, ns="exact", dtype=jnp.float32)
    assert [float(rate) for rate in rates] == pytest.approx([0.0, 0.01, 0.02], rel=1e-6)
    assert float(tokens) == pytest.approx(0.02, rel=1e-6)
    # A sum of 256 products of float32, each within 1e-7.
    np.testing.assert_allclose(u @ u.T, np.eye(200), atol=1e-5)

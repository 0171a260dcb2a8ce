# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Transformations inside each other and inside Optax's own."""

import functools

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

from dovetail_optim import accumulate, compress, guard, muon, route, soap, watch, wsd
from dovetail_optim.testing import check_transformation

RNG = np.random.default_rng(0)
PARAMS = {
    "embed": jnp.asarray(RNG.normal(size=(7, 4)), jnp.float32),
    "layers": [jnp.asarray(RNG.normal(size=(3, 3)), jnp.float32) for _ in range(2)],
}
QUICK = {"ns": [(1.5, -0.5, 0.0)], "dtype": jnp.float32}  # the compiler's time is the test's


def everything():
    rules = [
        ("**.layers.0", muon(wsd(1e-2, warmup=2, total=9, cooldown=3), **QUICK)),
        ("**.layers.1", soap(1e-2, refresh=2)),
        ("**", compress(optax.adamw(1e-2), block=4)),
    ]
    return guard(accumulate(watch(route(rules)), every=2))


@pytest.mark.slow
def test_the_contract_of_all_together():
    # Of SOAP's eigenvectors, as in its own contract.
    check_transformation(everything(), PARAMS, tolerance=5e-3, value=1.0, count=2.0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "make, static",
    [
        (functools.partial(muon, **QUICK), ("dtype", "chunk_bytes")),
        (soap, ("refresh", "max_dim")),
    ],
)
def test_rates_may_be_hyperparameters_of_the_state(make, static):
    plain = make(0.02, weight_decay=0.1)
    injected = optax.inject_hyperparams(make, static_args=static)(
        learning_rate=0.1, weight_decay=0.1
    )
    params, rng = PARAMS["layers"][0], np.random.default_rng(1)
    held, state = plain.init(params), injected.init(params)
    state.hyperparams["learning_rate"] = jnp.asarray(0.02)
    step = jax.jit(injected.update)
    for _ in range(3):
        grads = jnp.asarray(rng.normal(size=params.shape), jnp.float32)
        want, held = plain.update(grads, held, params)
        found, state = step(grads, state, params)
        # A product with a number that is known is rounded otherwise than with one that is not.
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6)
    assert "momentum" in state.hyperparams or "basis_decay" in state.hyperparams


@pytest.mark.parametrize("make, name", [(muon, "dtype"), (soap, "refresh")])
def test_what_decides_shapes_may_not(make, name, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    tx = optax.inject_hyperparams(make)(learning_rate=0.02)
    state = tx.init(PARAMS["layers"][0])
    with pytest.raises(TypeError, match=rf"{name} must be known.*static_args=\('{name}',\)"):
        jax.jit(tx.update)(PARAMS["layers"][0], state, PARAMS["layers"][0])

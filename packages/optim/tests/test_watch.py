# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail_optim import measurements, watch
from dovetail_optim.testing import check_transformation

RNG = np.random.default_rng(0)
PARAMS = {
    "layers": {"kernel": RNG.normal(size=(3, 4, 5)).astype(np.float32)},
    "norm": RNG.normal(size=7).astype(np.float32),
}
TX = watch(
    optax.chain(optax.clip_by_global_norm(5.0), optax.sgd(0.1)), stacks={"layers.**": 1}, clip=5.0
)


def rms(x, axes=None):
    return np.sqrt(np.mean(np.asarray(x, np.float64) ** 2, axis=axes))


def test_measurements_are_those_of_numpy():
    params, state = jax.tree.map(jnp.asarray, PARAMS), TX.init(PARAMS)
    update = jax.jit(TX.update)
    norms = []
    for size in (0.1, 10.0, 0.2, 20.0):
        grads = jax.tree.map(
            lambda p, s=size: jnp.asarray(s * RNG.normal(size=p.shape), "f4"), params
        )
        before = params
        updates, state = update(grads, state, params)
        params = optax.apply_updates(params, updates)
        norms.append(
            np.sqrt(
                sum(
                    (np.asarray(g, np.float64) ** 2).sum()
                    for g in grads.values()
                    if not isinstance(g, dict)
                )
                + (np.asarray(grads["layers"]["kernel"], np.float64) ** 2).sum()
            )
        )
    found = measurements(state)
    assert found["clip_rate"] == np.mean(np.array(norms) > 5.0) == 0.5
    np.testing.assert_allclose(found["gradient_norm"], norms[-1], rtol=1e-6)
    for kind, tree in (("gradient", grads), ("update", updates), ("weight", before)):
        np.testing.assert_allclose(found[f"{kind}_rms/norm"], rms(tree["norm"]), rtol=1e-5)
        by_layer = rms(tree["layers"]["kernel"], (1, 2))
        np.testing.assert_allclose(found[f"{kind}_rms/layers.kernel"], by_layer, rtol=1e-5)
    assert len(found) == 2 + 3 * 2


def test_what_it_watches_moves_as_without():
    plain = optax.chain(optax.clip_by_global_norm(5.0), optax.sgd(0.1))
    grads = jax.tree.map(lambda p: 3 * p, PARAMS)
    ours, _ = TX.update(grads, TX.init(PARAMS), PARAMS)
    theirs, _ = plain.update(grads, plain.init(PARAMS), PARAMS)
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.thorough
def test_contract():
    check_transformation(watch(optax.adamw(1e-2)), PARAMS)


def test_wrong_calls():
    with pytest.raises(
        ValueError, match=r"got 'layer.\*', which matches none of .*nearest: 'layers.kernel'"
    ):
        watch(optax.sgd(1.0), stacks={"layer.*": 1}).init(PARAMS)
    with pytest.raises(
        ValueError, match=r"leave an axis.*'norm': 1 for 'norm' of shape \(7,\). Use"
    ):
        watch(optax.sgd(1.0), stacks={"norm": 1}).init(PARAMS)
    with pytest.raises(ValueError, match=r"got params=None. Use update\(grads, state, params\)"):
        TX.update(PARAMS, TX.init(PARAMS))
    with pytest.raises(ValueError, match=r"one watch, got 0 in a tuple. Use watch"):
        measurements(optax.adam(1.0).init(PARAMS))


def test_a_norm_at_the_bound_is_not_clipped():
    tx = watch(optax.clip_by_global_norm(5.0), clip=5.0)
    grads = {"w": jnp.asarray([3.0, 4.0])}
    _, state = tx.update(grads, tx.init(grads), grads)
    assert measurements(state)["clip_rate"] == 0


def test_bfloat16_is_squared_and_summed_in_float32():
    tx = watch(optax.identity())
    grads = {"w": jnp.full(1001, 1.0078125, jnp.bfloat16)}  # 1 + 2^-7, whose square bfloat16 rounds
    _, state = tx.update(grads, tx.init(grads), grads)
    np.testing.assert_allclose(measurements(state)["gradient_rms/w"], 1.0078125, rtol=1e-6)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every kind of optimizer state comes back, and the next step is the one that would have come."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dovetail_checkpoint import Store
from dovetail_optim import compress, guard, muon, route, soap

SMALL = optax.adam(1e-2)
OPTIMIZERS = {
    "sgd": optax.sgd(1e-2),
    "adamw with a schedule": optax.adamw(optax.cosine_decay_schedule(1e-2, 9)),
    "adafactor": optax.adafactor(1e-2, min_dim_size_to_factor=4),
    "chain with clipping and noise": optax.chain(
        optax.clip_by_global_norm(1.0), optax.add_noise(0.1, 0.5, key=jax.random.key(3)), SMALL
    ),
    "hyperparameters in the state": optax.inject_hyperparams(optax.adam)(learning_rate=1e-2),
    "masked": optax.masked(SMALL, {"embed": True, "layers": [False, True], "scale": True}),
    "several, by label": optax.multi_transform(
        {"adam": SMALL, "none": optax.set_to_zero()},
        {"embed": "adam", "layers": ["none", "adam"], "scale": "none"},
    ),
    "accumulating": optax.MultiSteps(SMALL, every_k_schedule=2),
    "moving average of weights": optax.chain(SMALL, optax.ema(0.9)),
    "schedule-free": optax.contrib.schedule_free_adamw(1e-2),
    "muon": optax.contrib.muon(1e-2),
    "guarded Muon, SOAP and AdamW in 8 bits": guard(
        route(
            [
                ("layers.0", muon(1e-2)),
                ("layers.1", soap(1e-2)),
                ("**", compress(optax.adamw(1e-2))),
            ]
        )
    ),
    "lookahead of finite updates": optax.apply_if_finite(optax.lion(1e-3), 3),
}


def parameters():
    rng = np.random.default_rng(0)
    shapes = {"embed": (7, 4), "layers": [(4, 6), (6, 4)], "scale": (4,)}
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    return jax.tree.map(
        lambda s: jnp.asarray(rng.normal(size=s), jnp.float32), shapes, is_leaf=is_shape
    )


@pytest.mark.costly("no smaller test proves the capability")
@pytest.mark.capability("optimizer states saved and restored to the bit")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_next_step_is_the_one_that_would_have_come(name, tmp_path):
    tx = OPTIMIZERS[name]
    tx = tx.gradient_transformation() if isinstance(tx, optax.MultiSteps) else tx

    def step(params, state):
        gradients = jax.tree.map(lambda x: jnp.sin(3 * x), params)
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    state = parameters(), tx.init(parameters())
    for _ in range(3):
        state = step(*state)
    with Store(tmp_path) as store:
        store.save(3, train=state)
        number, items = store.restore(train=jax.eval_shape(lambda: state))
    assert (number, str(store.report)) == (3, "step 3 is verified")
    assert jax.tree.structure(items["train"]) == jax.tree.structure(state)
    found, want = step(*items["train"]), step(*state)
    for have, wish in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_array_equal(bits(have), bits(wish))


def bits(x):
    return jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x

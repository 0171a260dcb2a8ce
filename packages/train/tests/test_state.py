# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from dovetail_train import Trainer, make_mesh


def _loss(model, batch, *, key):
    error = (model(batch["x"]) - batch["y"]) ** 2
    return error.sum(), error.size * 1.0


def test_a_transformation_of_some_parameters_alone_has_the_steps_of_its_parts():
    labels = {"kernel": "sgd", "bias": "adam"}
    parts = {"sgd": optax.sgd(0.1, momentum=0.9), "adam": optax.adam(0.01)}
    generator = np.random.default_rng(0)
    batch = {
        "x": generator.normal(size=(6, 5)).astype("f4"),
        "y": generator.normal(size=(6, 3)).astype("f4"),
    }
    model = nnx.Linear(5, 3, rngs=nnx.Rngs(0))
    trainer = Trainer(optax.partition(parts, labels), _loss, mesh=make_mesh(fsdp=1))
    state = trainer.init(model)
    params = {"kernel": model.kernel[...], "bias": model.bias[...]}
    opt = {name: parts[label].init(params[name]) for name, label in labels.items()}
    for _ in range(3):
        state, _ = trainer.step(state, batch)

        def mean(p):
            return ((batch["x"] @ p["kernel"] + p["bias"] - batch["y"]) ** 2).mean()

        grads = jax.grad(mean)(params)
        for name, label in labels.items():
            update, opt[name] = parts[label].update(grads[name], opt[name], params[name])
            params[name] = params[name] + update
    for name, expected in params.items():
        # Three float32 steps of sums over 6 rows: a few units in the last place.
        np.testing.assert_allclose(state.params[name], expected, rtol=1e-5, atol=1e-6)
    assert all(leaf.dtype in (jnp.float32, jnp.int32) for leaf in jax.tree.leaves(state.opt))

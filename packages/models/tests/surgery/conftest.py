# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests of surgery share."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx


@pytest.fixture(scope="session")
def adapt():
    """A function that gives a model adapters with random A and B."""
    # Inside the fixture: the import hook of the package's own conftest must run first.
    from dovetail_models import lora

    def make(model, pattern, *, seed=5, rank=3, alpha=7.0, **options):
        model = lora.insert(model, pattern, rank=rank, alpha=alpha, rngs=nnx.Rngs(0), **options)
        rng = np.random.default_rng(seed)

        def draw(path, param):
            value = 0.3 * rng.standard_normal(param.shape)
            return param.replace(jnp.asarray(value.astype(param.dtype)))

        nnx.update(model, nnx.map_state(draw, nnx.state(model, nnx.LoRAParam)))
        return model

    return make


@pytest.fixture(scope="session")
def jitted():
    """A function (model, tokens) -> logits, compiled once per kind of model."""
    return nnx.jit(lambda model, tokens: model(tokens))

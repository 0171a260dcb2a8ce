# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Distillation against TRL's generalised Jensen-Shannon divergence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import rows_of
from flax import nnx

from dovetail_tune import Twin, gkd, losses
from dovetail_tune.testing import TinyDecoder

torch = pytest.importorskip("torch", minversion="2.6")
pytest.importorskip("trl", minversion="1.16")

pytestmark = [
    pytest.mark.parity,
    # Of torch and of libraries that TRL imports.
    pytest.mark.filterwarnings("default"),
]

FORMS = {
    0.0: {"kind": "forward"},
    1.0: {"kind": "reverse"},
    0.5: {"kind": "jsd"},
    0.1: {"kind": "jsd", "beta": 0.1},
}


@pytest.fixture
def their_divergence(monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl.experimental.gkd import GKDTrainer

    return GKDTrainer.generalized_jsd_loss


every = pytest.mark.parametrize("beta", list(FORMS))


@every
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_values_and_gradients_of_tokens(their_divergence, beta, temperature):
    rng = np.random.default_rng(0)
    student, guide = rng.normal(size=(2, 3, 5, 17)).astype(np.float32) * 4
    theirs = torch.tensor(student, requires_grad=True)
    options = {"beta": beta, "temperature": temperature, "reduction": "none"}
    expected = their_divergence(theirs, torch.tensor(guide), **options)
    expected.sum().backward()

    def values(x):
        scaled = x / temperature, jnp.asarray(guide) / temperature
        return losses.divergence(*scaled, **FORMS[beta])

    own, gradient = values(jnp.asarray(student)), jax.grad(lambda x: values(x).sum())
    # Log-probabilities down to -40 in float32, on both sides.
    np.testing.assert_allclose(own, expected.detach().sum(-1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient(jnp.asarray(student)), theirs.grad, rtol=1e-3, atol=1e-5)


@every
def test_the_mean_over_the_tokens_that_count(their_divergence, beta):
    """TRL's mean has no factor T²."""
    twin = Twin(TinyDecoder(rngs=nnx.Rngs(0)), TinyDecoder(rngs=nnx.Rngs(1)))
    batch, t = rows_of(rows=3, seed=0), 1.7
    options = {name: batch[name] for name in ("positions", "segment_ids")}
    logits = [
        torch.tensor(
            np.asarray(model.head(model.features(jnp.asarray(batch["tokens"]), **options)[0]))
        )
        for model in (twin.trained, twin.frozen)
    ]
    labels = torch.tensor(np.where(batch["mask"] > 0, batch["targets"], -100))
    expected = their_divergence(*logits, labels=labels, beta=beta, temperature=t)
    total, count = gkd(**FORMS[beta], temperature=t, chunk=7)(twin, batch, key=None)["kl"]
    np.testing.assert_allclose(total / count, t**2 * expected.item(), rtol=1e-5)

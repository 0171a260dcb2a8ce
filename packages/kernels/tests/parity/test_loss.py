# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The cross-entropy against torch's, in float64 there: the same options, the same gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.loss.api import linear_cross_entropy, linear_logprobs

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity
M, D, V = 23, 8, 257
rng = np.random.default_rng(4)
X, W = rng.standard_normal((M, D)).astype("f4"), rng.standard_normal((D, V)).astype("f4")
LABELS = rng.integers(0, V, M).astype("i4")
LABELS[::5] = -100


def close(found, expected):
    """Float32 epsilon times the numbers summed."""
    np.testing.assert_allclose(found, expected.numpy(), rtol=2**-23 * V, atol=2**-23 * V)


@pytest.mark.parametrize("smoothing", [0.0, 0.15])
def test_cross_entropy_with_ignore_index_and_label_smoothing(smoothing):
    x, w = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (X, W))
    total = torch.nn.functional.cross_entropy(
        x @ w,
        torch.tensor(LABELS).long(),
        ignore_index=-100,
        label_smoothing=smoothing,
        reduction="sum",
    )
    total.backward()

    def loss(x, w):
        found = linear_cross_entropy(x, w, LABELS, where=LABELS != -100, smoothing=smoothing)
        return found.sum, found.count

    (found, count), (dx, dw) = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(X, W)
    assert int(count) == (LABELS != -100).sum()
    close(found, total.detach())
    close(dx, x.grad)
    close(dw, w.grad)


def test_log_probabilities_and_entropy():
    labels = np.where(LABELS < 0, 0, LABELS)
    x, w = (torch.tensor(a, dtype=torch.float64, requires_grad=True) for a in (X, W))
    one = torch.distributions.Categorical(logits=x @ w / 0.7)
    logprob, entropy = one.log_prob(torch.tensor(labels)), one.entropy()
    factors = torch.tensor(rng.standard_normal((2, M)))
    (factors[0] @ logprob + factors[1] @ entropy).backward()
    a, b = (jnp.asarray(f, jnp.float32) for f in factors.numpy())

    def loss(x, w):
        found = linear_logprobs(x, w, labels, temperature=0.7)
        return jnp.sum(a * found.logprob + b * found.entropy), found

    (_, found), (dx, dw) = jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(X, W)
    close(found.logprob, logprob.detach())
    close(found.entropy, entropy.detach())
    close(dx, x.grad)
    close(dw, w.grad)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The reference by hand: three tokens, two columns."""

import jax.numpy as jnp
import numpy as np

from dovetail_kernels.loss.api import linear_cross_entropy, linear_logprobs

X = jnp.asarray([[1.0], [2.0], [jnp.nan]])
W = jnp.asarray([[0.0, np.log(3.0)]])  # odds of 3 and 9
WHERE = jnp.asarray([1.0, 2.0, 0.0])


def test_cross_entropy():
    found = linear_cross_entropy(X, W, jnp.asarray([1, 0, 7]), where=WHERE, impl="reference")
    expected = {
        "sum": np.log(4 / 3) + 2 * np.log(10),
        "count": 3.0,
        "z_sum": np.log(4) ** 2 + 2 * np.log(10) ** 2,
        "correct": 1.0,
    }
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-6)


def test_log_probabilities():
    logprob, entropy = linear_logprobs(
        X, W, jnp.asarray([1, 0, 7]), where=WHERE > 0, impl="reference"
    )
    np.testing.assert_allclose(logprob, [np.log(0.75), np.log(0.1), 0], rtol=1e-6)
    of = [-(p * np.log(p) + (1 - p) * np.log(1 - p)) for p in (0.75, 0.9)]
    np.testing.assert_allclose(entropy, [*of, 0], rtol=1e-6)

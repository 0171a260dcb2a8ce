# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The computation by which devices are compared."""

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_train.loop.probe import Probe, _rounds


def test_rounds_are_four_products_each():
    rng = np.random.default_rng(0)
    rows, matrix = rng.normal(size=(6, 3)), rng.normal(size=(3, 3)) / 2
    result = _rounds(jnp.float32(rows), jnp.float32(matrix), jnp.int32(3))
    # Twelve products of three terms each, in float32.
    np.testing.assert_allclose(result, rows @ np.linalg.matrix_power(matrix, 12), rtol=1e-4)


@jax.transfer_guard("disallow")
def test_a_probe_takes_ten_milliseconds_or_more_and_stays_finite():
    probe = Probe(jax.local_devices())
    rounds = probe.rounds()
    assert rounds == 1 or min(probe.seconds(rounds) for _ in range(3)) > 0.002
    assert rounds & (rounds - 1) == 0
    result = probe._run(probe._rows, probe._matrix, jax.device_put(np.int32(100)))
    # An odd number of reflections is one. 400 products, each with errors of some 1e-7.
    np.testing.assert_allclose(jax.device_get(result), jax.device_get(probe._rows), atol=1e-3)

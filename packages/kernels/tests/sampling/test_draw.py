# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Draws in proportion to weights, where running sums are rounded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.sampling.draw import _reached

pytestmark = pytest.mark.thorough


def test_no_token_without_weight_is_drawn_where_sums_are_rounded():
    """Running sums in float32 rise where nothing is added; the share of such a place is asked."""
    rng = np.random.default_rng(0)
    weights = np.exp(rng.normal(size=(4000, 512)) * 3).astype("f4") * (
        rng.random((4000, 512)) < 0.2
    )
    sums = np.asarray(jax.jit(lambda w: jnp.cumsum(w, axis=1))(weights))
    rows, places = np.nonzero((np.diff(sums, axis=1) > 0) & (weights[:, 1:] == 0))
    assert len(rows) > 1000
    share = np.minimum(sums[rows, places] / sums[rows, -1], np.float32(1 - 2.0**-23))
    found = np.asarray(jax.jit(_reached)(weights[rows], share))
    assert (weights[rows, found] > 0).all()

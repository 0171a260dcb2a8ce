# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Round to nearest against Qwix and the outputs themselves."""

import jax.numpy as jnp
import numpy as np
import pytest
import qwix

from dovetail_quant.codes import codes
from dovetail_quant.codes.spec import Spec
from dovetail_quant.methods.absmax import absmax, measured

pytestmark = pytest.mark.thorough


def test_round_to_nearest_is_measured() -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(50, 12)) @ rng.normal(size=(12, 12))).astype(np.float32)
    w = rng.normal(size=(12, 5)).astype(np.float32)
    spec = Spec(weight="int4", group=4)
    q, r = measured(jnp.asarray(w), jnp.asarray(x.T @ x), spec)
    like = qwix.quantize(jnp.asarray(w), jnp.int4, channelwise_axes=[1], tiled_axes={0: 4})
    for got in (q, absmax(jnp.asarray(w), spec)):
        np.testing.assert_array_equal(got.qvalue, like.qvalue)
        np.testing.assert_array_equal(got.scale, like.scale)
    error = ((x.astype(np.float64) @ (np.asarray(codes.dequantize(q)) - w)) ** 2).sum()
    np.testing.assert_allclose([r.error, r.nearest], error, rtol=1e-3)
    assert r.kept == 5

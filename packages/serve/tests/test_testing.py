# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The small bundle for tests computes what its function in NumPy says."""

import numpy as np

from dovetail_serve import load
from dovetail_serve.testing import save_mlp


def test_results_are_those_of_numpy(tmp_path):
    expected = save_mlp(tmp_path / "1")
    x = np.random.default_rng(1).normal(size=(11, 6)).astype("float32")
    # float32 sums of at most 6 terms.
    np.testing.assert_allclose(load(tmp_path / "1")(x=x)["y"], expected(x), rtol=1e-5, atol=1e-6)

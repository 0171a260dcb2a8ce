# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The reference by the conformance suite, and its filters against the oracle and the thresholds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.sampling import reference
from dovetail_kernels.sampling.api import warp_logits
from dovetail_kernels.testing import sampling as suite


@pytest.mark.thorough
@pytest.mark.parametrize("case", suite.cases(), ids=lambda case: case.name)
def test_conformance(case):
    suite.check(reference.sample, case)


@pytest.mark.parametrize("case", suite.cases(), ids=lambda case: case.name)
def test_kept_tokens_are_those_of_the_oracle_and_of_the_thresholds(case):
    rows = suite.draw(case)
    for i, row in enumerate(rows):
        options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        options |= suite._options(case, i)
        p, _ = suite.oracle(row, **options)
        arrays = [jnp.asarray(x, "i4" if n == "top_k" else "f4") for n, x in options.items()]
        warped = np.asarray(jax.jit(reference.warp_row)(row, *arrays))
        ours = np.asarray(warp_logits(row[None], **options)[0])
        if p is None:
            assert np.isnan(warped).all()
            assert np.isnan(ours).all()
        else:
            np.testing.assert_array_equal(warped > -np.inf, p > 0)
            np.testing.assert_array_equal(ours, warped)

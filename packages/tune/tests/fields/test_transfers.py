# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Fields that a model computes between the steps, under a guard against implicit transfers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_tune import check_pairs, explain, with_reference, with_teacher
from dovetail_tune.testing import TinyDecoder

_TOKENS = np.array([[1, 2, 3, 4], [1, 2, 3, 5]], np.int32)
_BATCH = {
    "tokens": _TOKENS,
    "targets": np.roll(_TOKENS, -1, 1),
    "mask": np.array([[0, 0, 1, 0]] * 2, np.float32),
    "segment_ids": np.ones_like(_TOKENS),
}


@pytest.mark.capability("scores of a reference are computed under a guard against transfers")
def test_fields_are_computed_under_a_guard_against_transfers():
    model = TinyDecoder(rngs=nnx.Rngs(0))
    with jax.transfer_guard("disallow"):
        (reference,) = with_reference([_BATCH], model)
        (teacher,) = with_teacher([_BATCH], model, k=2)
        assert check_pairs(_BATCH) == 0
        assert "2 rows" in str(explain(_BATCH))
    logits = np.asarray(model.head(model.features(jnp.asarray(_TOKENS))[0]), np.float64)
    logps = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = [logps[i, 2, _BATCH["targets"][i, 2]] for i in range(2)]
    np.testing.assert_allclose(reference["ref_logps"], expected, rtol=1e-5)
    assert {name for name in teacher if name.startswith("teacher")}

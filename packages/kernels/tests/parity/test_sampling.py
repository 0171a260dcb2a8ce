# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The tokens that are kept against those that the warpers of transformers leave, in their order."""

import jax
import numpy as np
import pytest

from dovetail_kernels.sampling.api import warp_logits

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.parity


@pytest.mark.parametrize("vocabulary", [40, 3001])
@pytest.mark.parametrize(
    "options",
    [
        {"top_k": 7},
        {"top_p": 0.6},
        {"min_p": 0.05},
        {"top_k": 30, "top_p": 0.9, "min_p": 0.02},
        {"top_k": 5000, "top_p": 0.3},
    ],
)
def test_kept_tokens(vocabulary, options):
    from transformers.generation import logits_process as warpers

    z = np.random.default_rng(vocabulary).standard_normal((50, vocabulary)).astype(np.float32) * 2
    scores = warpers.TemperatureLogitsWarper(0.8)(None, torch.tensor(z).double())
    if "top_k" in options:
        scores = warpers.TopKLogitsWarper(options["top_k"])(None, scores)
    if "top_p" in options:
        scores = warpers.TopPLogitsWarper(options["top_p"])(None, scores)
    if "min_p" in options:
        scores = warpers.MinPLogitsWarper(options["min_p"])(None, scores)
    found = jax.jit(lambda z: warp_logits(z, temperature=0.8, **options))(z)
    np.testing.assert_array_equal(np.asarray(found) > -np.inf, torch.isfinite(scores).numpy())
    ours = np.asarray(jax.nn.softmax(found, axis=1))
    np.testing.assert_allclose(ours, torch.softmax(scores, 1).numpy(), rtol=1e-4, atol=1e-7)

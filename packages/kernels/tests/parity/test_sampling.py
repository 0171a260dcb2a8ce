# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Kept tokens, penalties and log-probabilities against transformers and torch."""

import jax
import numpy as np
import pytest

from dovetail_kernels.sampling.adjust import adjust_logits
from dovetail_kernels.sampling.api import warp_logits
from dovetail_kernels.sampling.logprobs import token_logprobs

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


@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_repetition_penalty(penalty):
    from transformers.generation import logits_process as processors

    rng = np.random.default_rng(0)
    z = rng.standard_normal((5, 3001)).astype(np.float32) * 3
    prompt, output = rng.integers(0, 3001, (5, 60)), rng.integers(0, 3001, (5, 25))
    mask, counts = np.zeros(z.shape, bool), np.zeros(z.shape, np.int32)
    np.put_along_axis(mask, prompt, True, axis=1)
    np.add.at(counts, (np.arange(5)[:, None], output), 1)
    seen = torch.tensor(np.concatenate([prompt, output], axis=1))
    theirs = processors.RepetitionPenaltyLogitsProcessor(penalty)(seen, torch.tensor(z))
    found = adjust_logits(z, prompt_mask=mask, output_counts=counts, repetition_penalty=penalty)
    # One product or quotient in float32, by a penalty rounded to float32.
    np.testing.assert_allclose(found, theirs.numpy(), rtol=2.5e-7)


def test_sequence_bias():
    """Of single tokens, it is OpenAI's `logit_bias`."""
    from transformers.generation import logits_process as processors

    z = np.random.default_rng(1).standard_normal((3, 50)).astype(np.float32)
    bias = {(7,): 2.5, (0,): -4.0, (49,): 1.0}
    theirs = processors.SequenceBiasLogitsProcessor(bias)(
        torch.zeros((3, 4), dtype=torch.long), torch.tensor(z)
    )
    ids = np.tile(np.array([[*(i for (i,) in bias), -1]], np.int32), (3, 1))
    values = np.tile(np.array([[*bias.values(), 9.0]], np.float32), (3, 1))
    found = adjust_logits(z, bias=(ids, values))
    np.testing.assert_allclose(found, theirs.numpy(), rtol=1e-7)


def test_log_probabilities():
    z = np.random.default_rng(2).standard_normal((4, 3001)).astype(np.float32) * 3
    tokens = np.array([0, 17, 3000, 5], np.int32)
    logps = torch.log_softmax(torch.tensor(z).double(), 1)
    top = torch.topk(logps, 5)
    found = token_logprobs(z, tokens, k=5)
    chosen = logps[torch.arange(4), torch.tensor(tokens).long()]
    np.testing.assert_array_equal(found.ranks, (logps >= chosen[:, None]).sum(1).numpy())
    np.testing.assert_array_equal(found.top_tokens, top.indices.numpy())
    np.testing.assert_allclose(found.logprobs, chosen.numpy(), atol=1e-5)
    np.testing.assert_allclose(found.top_logprobs, top.values.numpy(), atol=1e-5)

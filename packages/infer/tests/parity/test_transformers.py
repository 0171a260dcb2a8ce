# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bias, bans, penalties and filters against the logits processors of transformers.

Its repetition penalty reads prompt and output, as ours. Of equal logits its `top_p` keeps those
that its sort has first; ours keeps all, so the logits of that test are unequal.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_infer import Sampling, reference
from dovetail_infer.step import logits, slots

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.parity

VOCAB, EOS_ID = 50, 5
PROMPT, OUTPUT = [1, 2, 3, 3, 30], [2, 4, 4, 5]
CASES: dict[str, tuple[Sampling, Any]] = {
    "repetition_penalty": (
        Sampling(repetition_penalty=1.7),
        lambda: [transformers.RepetitionPenaltyLogitsProcessor(1.7)],
    ),
    "repetition_penalty below 1": (
        Sampling(repetition_penalty=0.6),
        lambda: [transformers.RepetitionPenaltyLogitsProcessor(0.6)],
    ),
    "logit_bias": (
        Sampling(logit_bias={3: 2.5, 7: -math.inf}),
        lambda: [transformers.SequenceBiasLogitsProcessor([[[3], 2.5], [[7], -math.inf]])],
    ),
    "min_tokens": (
        Sampling(min_tokens=5, stop_token_ids=[9]),
        lambda: [
            transformers.MinNewTokensLengthLogitsProcessor(
                len(PROMPT), 5, [EOS_ID, 9], device="cpu"
            )
        ],
    ),
    "top_k": (Sampling(top_k=7), lambda: [transformers.TopKLogitsWarper(7)]),
    "top_p": (Sampling(top_p=0.8), lambda: [transformers.TopPLogitsWarper(0.8)]),
    "min_p": (Sampling(min_p=0.05), lambda: [transformers.MinPLogitsWarper(0.05)]),
    "all": (
        Sampling(
            temperature=1.6,
            logit_bias={3: 2.5, 7: -math.inf},
            min_tokens=5,
            repetition_penalty=1.7,
            top_k=20,
            top_p=0.9,
            min_p=0.01,
        ),
        lambda: [
            transformers.SequenceBiasLogitsProcessor([[[3], 2.5], [[7], -math.inf]]),
            transformers.MinNewTokensLengthLogitsProcessor(len(PROMPT), 5, EOS_ID, device="cpu"),
            transformers.RepetitionPenaltyLogitsProcessor(1.7),
            transformers.TemperatureLogitsWarper(1.6),
            transformers.TopKLogitsWarper(20),
            transformers.TopPLogitsWarper(0.9),
            transformers.MinPLogitsWarper(0.01),
        ],
    ),
}


def ours(sampling: Sampling, z: np.ndarray) -> np.ndarray:
    """log p of each token that may be drawn, else -inf."""
    options = slots.row_options([sampling], seeds=[0], outputs=[len(OUTPUT)])
    one = jnp.zeros(1, jnp.int32)
    rows = logits.Rows(
        *map(jnp.asarray, options), positions=one, slots=one, samples=jnp.ones(1, bool)
    )
    state = slots.slot_state(
        sampling, prompt=PROMPT, output=OUTPUT, vocab_size=VOCAB, eos_ids=[EOS_ID]
    )
    device = logits.State(*(jnp.asarray(x)[None] for x in state))
    warped = reference.warp_logits(
        logits.adjust(jnp.asarray(z)[None], rows, device),
        temperature=rows.temperature,
        top_k=rows.top_k,
        top_p=rows.top_p,
        min_p=rows.min_p,
    )
    return np.asarray(jax.nn.log_softmax(warped))[0]


@pytest.mark.parametrize("name", CASES)
def test_the_distribution_is_that_of_transformers(name: str) -> None:
    sampling, make = CASES[name]
    ids = torch.tensor([PROMPT + OUTPUT])
    for seed in range(20):
        z = (np.random.default_rng(seed).normal(size=VOCAB) * 2.5).astype("f4")
        theirs = torch.tensor(z)[None]
        for processor in make():
            theirs = processor(ids, theirs)
        right = torch.log_softmax(theirs.double(), dim=-1)[0].numpy()
        # Sums of 50 terms and quotients, in float32.
        np.testing.assert_allclose(ours(sampling, z), right, rtol=3e-6, atol=3e-6)

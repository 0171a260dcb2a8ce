# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The draws of prompts, completions and seeds are independent."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from engines import VOCAB, decoder, engine, logits

from dovetail_infer import Sampling, fold_seed

PROMPT = [1, 2, 3]
SEEDS, COUNT = range(4), 128


@pytest.fixture(scope="module")
def drawn():
    """First tokens of equal requests, [seeds, COUNT]: of one prompt, and of as many prompts."""
    option = {"max_tokens": 1, "temperature": 2.0}
    with engine() as running:
        completions, prompts = [], []
        for seed in SEEDS:
            (of_one,) = running.sample([PROMPT], n=COUNT, seed=seed, **option)
            completions.append(of_one)
            prompts.append(running.generate([PROMPT] * COUNT, Sampling(**option, seed=seed)))
    return [
        np.array([[int(c.tokens[0]) for c in row] for row in rows])
        for rows in (completions, prompts)
    ]


def expected():
    """The probabilities of the tokens, from a whole forward pass in float64."""
    scores = logits(decoder(), PROMPT)[-1].astype(np.float64) / 2.0
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


@pytest.mark.thorough
@pytest.mark.capability("independent draws of prompts, completions and seeds")
@pytest.mark.parametrize("of", [0, 1], ids=["completions", "prompts"])
def test_draws_have_the_distribution_of_the_model(drawn, of):
    """Chi-square over all seeds; the bound is its mean and six standard deviations."""
    p = expected()
    counts = np.bincount(drawn[of].ravel(), minlength=VOCAB)
    often = p * drawn[of].size >= 5  # the usual rule; the rest is one class
    observed = np.append(counts[often], counts[~often].sum())
    wanted = np.append(p[often], p[~often].sum()) * drawn[of].size
    freedom = len(observed) - 1
    assert freedom > 20
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    assert statistic < freedom + 6 * np.sqrt(2 * freedom)


@pytest.mark.thorough
@pytest.mark.parametrize("of", [0, 1], ids=["completions", "prompts"])
@pytest.mark.parametrize("shift", [-2, -1, 0, 1, 2])
def test_near_seeds_share_no_draws(drawn, of, shift):
    """Draws of two seeds agree as often as independent ones do, at each shift of the index.

    With seeds that are added to the index, all agree at the shift of the seeds.
    """
    chance = (expected() ** 2).sum()
    for a, b in itertools.combinations(SEEDS, 2):
        pairs = np.roll(drawn[of][a], shift) == drawn[of][b]
        assert abs(pairs.mean() - chance) < 6 * np.sqrt(chance / COUNT)


@pytest.mark.capability("independent draws of prompts, completions and seeds")
def test_each_completion_has_a_seed_of_its_own():
    """So do near seeds; the first has the seed itself, as a request alone does."""
    assert [fold_seed(seed) for seed in (0, 7, 2**64 - 1)] == [0, 7, 2**64 - 1]
    grid = itertools.product(range(4), range(16), range(16))
    seeds = [fold_seed(s, prompt=i, completion=j) for s, i, j in grid]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)
    # Bits 0 to 63 of 1,020 folded seeds: each is set in half, within six standard deviations.
    folded = [seed for seed in seeds if seed > 3]
    shares = [np.mean([seed >> bit & 1 for seed in folded]) for bit in range(64)]
    assert np.abs(np.array(shares) - 0.5).max() < 6 * 0.5 / np.sqrt(len(folded))

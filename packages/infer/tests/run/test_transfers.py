# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""An engine under a guard against implicit transfers, of its caller and of the whole process."""

import contextlib

import jax
import pytest
from engines import decoder, engine, prompts
from flax import nnx

from dovetail_infer import Sampling


@contextlib.contextmanager
def _of_the_process():
    jax.config.update("jax_transfer_guard", "disallow")  # for the engine's thread too
    try:
        yield
    finally:
        jax.config.update("jax_transfer_guard", "allow")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "guard",
    [
        lambda: jax.transfer_guard("disallow"),
        _of_the_process,
    ],
    ids=["of the caller", "of the process"],
)
def test_an_engine_passes_a_guard_against_transfers(guard):
    model, other = decoder(), nnx.state(decoder(seed=1))
    sampling = Sampling(max_tokens=4, temperature=0.8, seed=7)
    texts = prompts(2)
    with engine(model) as free:
        expected = [list(done.tokens) for done in free.generate(texts, sampling)]
    with guard(), engine(model) as guarded:
        completions = guarded.generate(texts, sampling)
        scores = guarded.score(texts)
        guarded.update_weights(other)
    assert [list(done.tokens) for done in completions] == expected
    assert len(scores) == 2

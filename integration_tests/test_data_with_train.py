# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The loss of packed rows equals that of their documents alone: data, models and train together."""

import jax
import numpy as np
import pytest

from dovetail_data import Bytes, Text, batches, pack, pad, text, write
from dovetail_models import init, qwen3
from dovetail_train import lm_loss

LENGTHS = (1, 3, 9, 14, 23, 30, 31)
ROW = 33


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    directory = tmp_path_factory.mktemp("documents")
    letters = np.random.default_rng(0).integers(97, 123, sum(LENGTHS)).astype(np.uint8)
    for i, words in enumerate(np.split(letters, np.cumsum(LENGTHS)[:-1])):
        (directory / f"{i}.txt").write_bytes(words.tobytes())
    return write(text(directory), directory / "corpus", encoder=Text(Bytes()))


@pytest.fixture(scope="module")
def model():
    config = qwen3(vocab_size=258, embed=32, depth=2, heads=4, kv_heads=2, head_dim=8, mlp=48)
    return init(config, seed=0)


def _total(model, rows):
    (batch,) = batches(rows, global_batch=len(rows), seed=None, epochs=1)
    loss, count = jax.jit(lambda b: lm_loss()(model, b, key=jax.random.key(0)))(batch)
    return float(loss), float(count)


def test_packed_rows_have_the_loss_of_their_documents(corpus, model):
    packed, alone = pack(corpus, length=ROW, seed=1), pad(corpus, length=ROW)
    assert len(packed) < len(alone) == len(LENGTHS)
    loss, count = _total(model, packed)
    expected, pairs = _total(model, alone)
    assert count == pairs == sum(LENGTHS) + len(LENGTHS)  # bos and eos add two ids, one pair
    # The same float32 terms, about 120 of them, summed in another order.
    assert loss == pytest.approx(expected, rel=1e-5)


def test_a_model_that_saw_its_neighbours_would_have_another_loss(corpus, model):
    (batch,) = batches(
        pack(corpus, length=ROW, seed=1),
        global_batch=len(pack(corpus, length=ROW, seed=1)),
        seed=None,
        epochs=1,
    )
    apart, _ = lm_loss()(model, batch, key=jax.random.key(0))
    blurred = {**batch, "segment_ids": np.minimum(batch["segment_ids"], 1)}
    together, _ = lm_loss()(model, blurred, key=jax.random.key(0))
    assert abs(float(apart) - float(together)) > 1e-3

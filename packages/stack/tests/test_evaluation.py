# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_data import Bytes, Text, text, write
from dovetail_models import init, llama
from dovetail_stack.recipes.evaluation import bits_per_byte

pytestmark = pytest.mark.thorough

TEXTS = ["a", "héllo wörld", "x" * 40]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    directory = tmp_path_factory.mktemp("corpus")
    for i, words in enumerate(TEXTS):
        (directory / f"{i}.txt").write_text(words)
    return write(text(directory), directory / "out", encoder=Text(Bytes()))


@pytest.fixture(scope="module")
def model():
    config = llama(
        vocab_size=258, embed=16, depth=2, heads=2, kv_heads=1, head_dim=8, mlp=24, tie=True
    )
    return init(config, seed=0)


def test_rows_that_hold_whole_documents_give_the_sum_of_their_log_probabilities(corpus, model):
    nats, longest = 0.0, max(len(words.encode()) for words in TEXTS) + 1
    forward = jax.jit(lambda model, tokens: model(tokens))
    for words in TEXTS:
        ids = [256, *words.encode(), 257]
        tokens = np.zeros((1, longest), np.int32)  # one shape; a causal model sees no padding
        tokens[0, : len(ids) - 1] = ids[:-1]
        logits = np.asarray(forward(model, tokens)[0, : len(ids) - 1], np.float64)
        logps = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        nats -= logps[np.arange(len(ids) - 1), ids[1:]].sum()
    expected = nats / math.log(2) / sum(len(words.encode()) for words in TEXTS)
    for rows_per_batch in (1, 2, 16):
        got = bits_per_byte(model, corpus, length=64, stride=32, rows_per_batch=rows_per_batch)
        assert got == pytest.approx(expected, rel=1e-5)  # float32 sums of about 60 terms


def test_a_uniform_model_needs_the_entropy_of_its_vocabulary(corpus, model):
    uniform = jax.tree.map(jnp.zeros_like, model)
    targets = sum(len(words.encode()) + 1 for words in TEXTS)
    expected = math.log2(258) * targets / corpus.text_bytes
    assert bits_per_byte(uniform, corpus, length=16, stride=8) == pytest.approx(expected, rel=1e-5)

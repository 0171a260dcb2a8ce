# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The loss of packed rows equals that of their documents alone: data, models and train together."""

import json
import uuid

import jax
import numpy as np
import optax
import pytest

from dovetail_data import Bytes, Corpus, Text, batches, jsonl, pack, pad, text, values, write
from dovetail_models import init, llama, qwen3
from dovetail_train import Trainer, lm_loss

pytestmark = pytest.mark.thorough

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


@pytest.mark.parametrize("family", [llama, qwen3])
def test_values_of_tokens_weigh_their_losses(tmp_path, family):
    """Weights beside the ids: a batch of packed rows has the loss of the documents by hand."""
    generator, lines = np.random.default_rng(0), []
    for length in LENGTHS:
        words = bytes(generator.integers(97, 123, length).astype(np.uint8)).decode()
        # Beside bos and eos too; half of them are 0.
        weights = generator.uniform(size=length + 2) * generator.integers(0, 2, length + 2)
        lines.append({"text": words, "weight": weights.astype(np.float32).tolist()})
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    encoder = Text(Bytes(), fields={"weight": values("float32", per_token=True)})
    corpus = write(jsonl(tmp_path / "a.jsonl"), tmp_path / "corpus", encoder=encoder)
    sizes = {"vocab_size": 258, "embed": 16, "depth": 1, "heads": 2, "kv_heads": 1, "mlp": 24}
    model = init(family(**sizes), seed=0)

    def weighted(model, batch, *, key):
        return lm_loss()(model, {**batch, "mask": batch["mask"] * batch["weight"]}, key=key)

    def total(rows):
        (batch,) = batches(rows, global_batch=len(rows), seed=None, epochs=1)
        return [float(x) for x in weighted(model, batch, key=jax.random.key(0))]

    loss, count = total(pack(corpus, length=ROW, seed=1))
    expected = 0.0
    for line in lines:
        ids = np.array([256, *line["text"].encode(), 257])
        logps = jax.nn.log_softmax(model(ids[None, :-1]))[0]
        nll = -np.asarray(logps, np.float64)[np.arange(len(ids) - 1), ids[1:]]
        expected += float(nll @ np.array(line["weight"][1:]))
    assert loss == pytest.approx(expected, rel=1e-5)  # about 120 float32 terms in another order
    assert count == pytest.approx(sum(sum(line["weight"][1:]) for line in lines), rel=1e-5)


def test_a_run_on_a_corpus_at_a_url_is_that_on_the_local_one(corpus, model, tmp_path):
    url = f"memory://{uuid.uuid4().hex}/corpus"
    losses = []
    for where in (corpus, _remote(corpus, url, tmp_path)):
        data = batches(pack(where, length=ROW, seed=1), global_batch=2, seed=0)
        trainer = Trainer(optax.adam(1e-3), lm_loss())
        state = trainer.init(model)
        for _ in range(3):
            state, metrics = trainer.step(state, next(data))
            losses.append(metrics.read()["loss"])
    assert losses[:3] == losses[3:]


def _remote(corpus, url, cache):
    """The same documents, written to a URL and opened there."""
    write(text(corpus.directory.parent, pattern="*.txt"), url, encoder=Text(Bytes()))
    return Corpus(url, cache=cache)

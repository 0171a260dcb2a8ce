# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""From texts to losses: pairs to DPO, chats to the loss of their answers, prompts."""

import json

import jax
import numpy as np
import pytest

from dovetail_data import (
    Bytes,
    Chat,
    Contrast,
    Preference,
    Prompt,
    Template,
    batches,
    contrasts,
    jsonl,
    pack,
    pairs,
    prompts,
    write,
)
from dovetail_models import init, llama
from dovetail_models.testing import logits
from dovetail_train import lm_loss
from dovetail_tune import dpo, info_nce, mean_loss, token_logps, with_reference

BOS, EOS = 256, 257
CONFIG = llama(vocab_size=258, embed=16, depth=1, heads=2, kv_heads=1, mlp=24)
PAIRS = [
    {"prompt": "2+2?", "chosen": "4", "rejected": "five"},
    {"prompt": "A color:", "chosen": " red", "rejected": " nine"},
    {"prompt": "", "chosen": "yes", "rejected": "n"},
]
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{{ eos_token }}{% endif %}"
    "{% endfor %}"
)
CHATS = [["2+2?", "4"], ["hi", "hello", "bye", "so long"], ["a?", "b"], ["what", "no"]]


@pytest.fixture(scope="module")
def model():
    return init(CONFIG, seed=0)


def _written(folder, records, encoder):
    folder.mkdir()
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    return write(jsonl(folder / "a.jsonl"), folder / "corpus", encoder=encoder)


def _logps(model, ids, start):
    """float64 log-probability of ids[start:] behind ids[:start]."""
    z = logits(model, [ids[:-1]])[0]
    z = z - np.logaddexp.reduce(z, axis=-1, keepdims=True)
    return z[np.arange(start - 1, len(ids) - 1), ids[start:]].sum()


@pytest.mark.thorough
def test_pairs_of_texts_have_the_loss_of_their_answers(model, tmp_path):
    rows = pairs(_written(tmp_path / "pairs", PAIRS, Preference(Bytes())), length=16)
    data = with_reference(
        batches(rows, global_batch=2 * len(PAIRS), seed=0, epochs=1), init(CONFIG, seed=1)
    )
    batch = next(data)
    value, terms = jax.jit(lambda batch: mean_loss(dpo(beta=0.5))(model, batch))(batch)
    losses, reference = [], init(CONFIG, seed=1)
    for pair in PAIRS:
        ratios = []
        for side in ("chosen", "rejected"):
            head = [BOS, *pair["prompt"].encode()]
            ids = [*head, *pair[side].encode(), EOS]
            own, ref = (_logps(m, ids, len(head)) for m in (model, reference))
            ratios.append(own - ref)
        losses.append(np.logaddexp(0, -0.5 * (ratios[0] - ratios[1])))
    # Sums of at most six log-probabilities in float32.
    assert float(value) == pytest.approx(np.mean(losses), rel=1e-5)
    assert 0 <= float(terms["accuracy"]) <= 1
    assert sorted(batch["pair_ids"]) == [0, 0, 1, 1, 2, 2]


def test_prompts_are_the_masked_beginnings_of_both_rows(tmp_path):
    both = pairs(_written(tmp_path / "pairs", PAIRS, Preference(Bytes())), length=16)
    alone = prompts(_written(tmp_path / "prompts", PAIRS, Prompt(Bytes())), length=16)
    assert len(alone) == len(both) == len(PAIRS)
    for i, pair in enumerate(PAIRS):
        prompt = alone[i]
        n = int(prompt["segment_ids"].sum())
        assert prompt["mask"].sum() == 0
        assert alone.extra([i]) == [{name: pair[name] for name in ("chosen", "rejected")}]
        for row in range(2):
            assert int(both[i]["mask"][row].argmax()) == n - 1  # the target after the prompt
            np.testing.assert_array_equal(both[i]["tokens"][row, :n], prompt["tokens"][:n])


def test_packed_chats_have_the_loss_of_the_assistant_alone(model, tmp_path):
    records = [
        {"messages": [{"role": r, "content": c} for r, c in zip(_roles(chat), chat, strict=True)]}
        for chat in CHATS
    ]
    chat = Chat(Bytes(), template=Template(TEMPLATE, eos="<|eos|>"))
    rows = pack(_written(tmp_path / "chats", records, chat), length=24, seed=0)
    assert len(rows) < len(CHATS)
    (batch,) = batches(rows, global_batch=len(rows), seed=None, epochs=1)
    loss, count = jax.jit(lambda batch: lm_loss()(model, batch, key=None))(batch)
    total, answers = 0.0, 0
    for texts in CHATS:
        ids, trained = [], []
        for role, text in zip(_roles(texts), texts, strict=True):
            said = [*text.encode(), EOS]
            ids += said
            trained += [role == "assistant"] * len(said)
        z = logits(model, [ids[:-1]])[0]
        z = z - np.logaddexp.reduce(z, axis=-1, keepdims=True)
        picked = z[np.arange(len(ids) - 1), ids[1:]]
        total -= picked[trained[1:]].sum()
        answers += sum(trained)
    assert float(count) == answers
    # About 25 float32 terms in another order.
    assert float(loss) == pytest.approx(total, rel=1e-5)
    scored = jax.jit(lambda batch: token_logps(model, batch).logprob.sum())(batch)
    assert float(scored) == pytest.approx(-total, rel=1e-5)


def _roles(chat):
    return ["assistant" if i % 2 else "user" for i in range(len(chat))]


def test_equal_texts_are_no_negatives_of_each_other(tmp_path):
    texts = [("red", "blue"), ("green", "blue"), ("two", "one"), ("one", "red red")]
    records = [{"query": q, "positive": p} for q, p in texts]
    rows = contrasts(_written(tmp_path / "texts", records, Contrast(Bytes())), length=12)

    def encode(model, batch):
        return np.eye(8, dtype=np.float32)[: len(batch["tokens"])]

    terms = info_nce(encode=encode)(None, rows.batch(np.arange(4)), key=None)
    # Records 0 and 1 share a text, and so do 2 and 3: each has 2 negatives of 3.
    assert float(terms["negatives"][0]) == 8

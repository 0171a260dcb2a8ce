# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import math
import types

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import Trainer, lm_loss
from dovetail_train.eval.choice import MultipleChoice, Question, Share, multiple_choice


class _Bytes:
    bos_id, eos_id = 256, 257

    def encode(self, texts):
        return [types.SimpleNamespace(ids=list(text.encode())) for text in texts]

    def decode(self, ids):
        return bytes(ids).decode()


class _Unigram(nnx.Module):
    """log p of each byte, wherever it stands: scores can be added up by hand."""

    def __init__(self, bits):
        p = np.full(258, 1e-9)
        for character, power in bits.items():
            p[list(character.encode())] = 2.0**-power
        p[0] = 1 - p[1:].sum()
        self.logits = nnx.Param(jnp.asarray(np.log(p), jnp.float32))

    def features(self, tokens, **options):
        return jnp.ones((*tokens.shape, 1)), None

    def head(self, x):
        return x * self.logits[...]


# "é" is one character of two bytes.
MODEL = {"a": 3, "b": 4, "c": 5, "é": 4, " ": 5}
QUESTIONS = [
    # 8 and 15 bits with the space; 3/1 and 10/3 bits per character without it count 8/1 and 15/3.
    Question(context="x", choices=["a", "bab"], answer=0),
    # 9 and 13 bits: by characters 9/1 and 13/1, by bytes 9/1 and 13/2.
    Question(context="yyy", choices=["b", "é"], answer=1),
    # 10 and 9 bits of one character each.
    Question(context="", choices=["c", "b"], answer=1),
    Question(context="z", choices=["c", "b", "a"], answer=0),
]


def _by_hand(question):
    bits = [5 + sum(MODEL[c] * len(c.encode()) for c in choice) for choice in question.choices]
    scores = {
        "acc": bits,
        "acc_norm": [b / len(c) for b, c in zip(bits, question.choices, strict=True)],
        "acc_bytes": [b / len(c.encode()) for b, c in zip(bits, question.choices, strict=True)],
    }
    return {name: int(np.argmin(score)) == question.answer for name, score in scores.items()}


def test_a_choice_is_scored_whole_per_character_and_per_byte():
    answers = multiple_choice(_Unigram(MODEL), _Bytes(), QUESTIONS, length=16)
    right = [_by_hand(question) for question in QUESTIONS]
    # Worked out above: each way of scoring gets others right.
    assert [r["acc"] for r in right] == [True, False, True, False]
    assert [r["acc_norm"] for r in right] == [False, False, True, False]
    assert [r["acc_bytes"] for r in right] == [False, True, True, False]
    assert (answers.acc.value, answers.acc_norm.value, answers.acc_bytes.value) == (0.5, 0.25, 0.5)
    assert answers.acc.count == 4
    # sqrt(Σ (x − mean)² / 3 / 4) of [1, 0, 1, 0] and [0, 0, 1, 0].
    assert answers.acc.stderr == pytest.approx(np.std([1, 0, 1, 0], ddof=1) / 2)
    assert answers.acc_norm.stderr == pytest.approx(np.std([0, 0, 1, 0], ddof=1) / 2)
    bits = -answers.likelihoods.logps / math.log(2)
    # float32 sums of at most 4 terms.
    np.testing.assert_allclose(bits, [8, 16, 9, 13, 10, 9, 10, 9, 8], rtol=1e-6)


def test_one_question_has_no_standard_error():
    share = Share.of([True])
    assert share.value == 1
    assert math.isnan(share.stderr)


def test_the_delimiter_is_scored_and_not_counted():
    glued = [Question(context="x", choices=["a", "bb"], answer=0, delimiter="")]
    answers = multiple_choice(_Unigram(MODEL), _Bytes(), glued, length=16)
    np.testing.assert_allclose(answers.likelihoods.logps / math.log(2), [-3, -8], rtol=1e-6)


def test_a_context_that_does_not_fit_is_counted():
    long = [Question(context="x" * 20, choices=["a", "b"], answer=0)]
    assert multiple_choice(_Unigram(MODEL), _Bytes(), long, length=16).likelihoods.cut.tolist() == [
        6,
        6,
    ]


def test_the_hook_reports_each_accuracy_under_its_name():
    hook = MultipleChoice(_Bytes(), QUESTIONS, every=3, name="tiny", length=16, rows=2)
    trainer = Trainer(optax.sgd(0.0), lm_loss())
    scalars = hook(trainer, trainer.init(_Unigram(MODEL)), 3)
    assert scalars == {
        "eval/tiny/acc": 0.5,
        "eval/tiny/acc_norm": 0.25,
        "eval/tiny/acc_bytes": 0.5,
        "eval/tiny/acc_stderr": pytest.approx(np.std([1, 0, 1, 0], ddof=1) / 2),
    }
    assert hook.every == 3


def test_a_hook_of_one_question_leaves_the_error_out():
    hook = MultipleChoice(_Bytes(), QUESTIONS[:1], every=1, name="one", length=16)
    trainer = Trainer(optax.sgd(0.0), lm_loss())
    scalars = hook(trainer, trainer.init(_Unigram(MODEL)), 1)
    assert set(scalars) == {"eval/one/acc", "eval/one/acc_norm", "eval/one/acc_bytes"}


@pytest.mark.parametrize("choices, answer", [(["a"], 1), (["a"], -1), ([], 0), (["a", ""], 0)])
def test_a_question_without_a_right_answer_is_refused(choices, answer):
    with pytest.raises(ValueError, match=r"index of one of them, got choices=.*write for example"):
        Question(context="x", choices=choices, answer=answer)


@pytest.mark.parametrize(
    "questions, options, message",
    [
        ([], {}, r"at least one question, got questions=\[\]; pass some"),
        (QUESTIONS, {"every": 0}, r"at least 1 and name not.*got every=0.*write for example"),
        (QUESTIONS, {"name": ""}, r"at least 1 and name not.*name=''; write for example"),
        # Begin-of-text, "yyy", a space and two bytes.
        (QUESTIONS, {"length": 5}, r"must fit the model, got one of 7 tokens.*pass length=6"),
    ],
)
def test_a_hook_that_could_not_run_is_refused(questions, options, message):
    options = {"every": 1, "name": "tiny", "length": 16} | options
    with pytest.raises(ValueError, match=message):
        MultipleChoice(_Bytes(), questions, **options)


def test_a_context_of_ids_is_read_as_it_is_and_its_choice_encoded_alone():
    ids = [256, *b"yyy"]
    of_ids = [Question(context=ids, choices=q.choices, answer=q.answer) for q in QUESTIONS[:2]]
    of_text = [Question(context="yyy", choices=q.choices, answer=q.answer) for q in QUESTIONS[:2]]
    finished = []
    options = {"length": 16, "rows": 3}
    answers = multiple_choice(
        _Unigram(MODEL), _Bytes(), of_ids, progress=finished.append, **options
    )
    wanted = multiple_choice(_Unigram(MODEL), _Bytes(), of_text, **options)
    np.testing.assert_array_equal(answers.likelihoods.logps, wanted.likelihoods.logps)
    np.testing.assert_array_equal(answers.likelihoods.tokens, wanted.likelihoods.tokens)
    assert finished == [3, 1]  # the rows of each batch

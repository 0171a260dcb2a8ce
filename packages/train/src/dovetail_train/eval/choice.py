# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Questions with given answers: the model's answer is the one that it finds most likely.

Longer answers are less likely whatever they say, so each question is judged three ways, by the
names of lm-evaluation-harness: Σ log p as it is (acc), divided by the characters of the answer
(acc_norm), and by its bytes (acc_bytes), which no tokenizer and no script changes.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from flax import nnx
from jax.sharding import Mesh

from dovetail_train.eval.likelihood import Likelihoods, loglikelihood
from dovetail_train.eval.text import HuggingFaceTokenizer, TextEncoder, Tokenizer
from dovetail_train.state import State

if TYPE_CHECKING:
    from dovetail_train.trainer import Trainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A text, what may follow it, and the index of the choice that is right.

    delimiter: stands between the text and the choice; it does not count as a part of its length.
    """

    context: str
    choices: Sequence[str]
    answer: int
    delimiter: str = " "

    def __post_init__(self) -> None:
        if not 0 <= self.answer < len(self.choices) or "" in self.choices:
            raise ValueError(
                f"a question must have choices with text and the index of one of them, got "
                f"choices={list(self.choices)}, answer={self.answer}; "
                f'write for example Question(context="1 + 1 =", choices=["2", "3"], answer=0)'
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Share:
    """The part of `count` questions that was answered right, and its standard error.

    stderr: the sample's standard deviation (divided by count − 1) over sqrt(count); NaN for one.
    """

    value: float
    stderr: float
    count: int

    @classmethod
    def of(cls, right: Sequence[bool]) -> "Share":
        count, value = len(right), sum(right) / len(right)
        spread = math.sqrt(value * (1 - value) / (count - 1)) if count > 1 else math.nan
        return cls(value=value, stderr=spread, count=count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """How the questions were answered: by log-likelihood, per character and per byte.

    found: what `loglikelihood` gave for each choice of each question in turn. Its `cut` says how
    many tokens of a context did not fit.
    """

    acc: Share
    acc_norm: Share
    acc_bytes: Share
    found: Likelihoods


def multiple_choice(
    model: nnx.Module,
    tokenizer: Tokenizer | HuggingFaceTokenizer,
    questions: Sequence[Question],
    *,
    length: int,
    rows: int = 8,
    bos: bool | None = None,
    attention: Callable[..., Any] | None = None,
    mesh: Mesh | None = None,
) -> Answers:
    """The parts of the questions whose right choice has the highest score; of equals, the first.

        question = Question(context="The sky is", choices=["blue", "loud"], answer=0)
        multiple_choice(model, tokenizer, [question], length=2048).acc.value

    bos: whether a text begins with begin-of-text, as in `TextEncoder`. The other options, and
    errors, as in `loglikelihood`; raises ValueError without questions.
    """
    requests = _requests(tokenizer, questions, bos=bos)
    found = loglikelihood(model, requests, length=length, rows=rows, attention=attention, mesh=mesh)
    return _answers(questions, found)


class MultipleChoice:
    """A hook: `multiple_choice` at every `every`-th step, as "eval/NAME/acc" and the like.

    name, then "acc", "acc_norm", "acc_bytes", and the standard error of the first as "acc_stderr".
    The model is in evaluation mode and in the trainer's precision. Raises ValueError when a
    question does not fit `length`, where its result would be that of another question.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | HuggingFaceTokenizer,
        questions: Sequence[Question],
        *,
        every: int,
        name: str,
        length: int,
        rows: int = 8,
        bos: bool | None = None,
        attention: Callable[..., Any] | None = None,
    ) -> None:
        if every < 1 or not name:
            raise ValueError(
                f"every must be at least 1 and name not empty, got every={every}, name={name!r}; "
                f'write for example MultipleChoice(tokenizer, questions, every=100, name="arc")'
            )
        self.every = every
        self._name, self._questions = name, questions
        self._requests = _requests(tokenizer, questions, bos=bos)
        self._options = {"length": length, "rows": rows, "attention": attention}
        self._check_lengths(length)

    def __call__(self, trainer: "Trainer", state: State, step: int) -> dict[str, float]:
        model = trainer.model(state, cast=True)
        mesh = trainer.mesh
        assert isinstance(mesh, Mesh)  # there is a state
        found = loglikelihood(model, self._requests, mesh=mesh, **self._options)
        answers = _answers(self._questions, found)
        kinds = {name: getattr(answers, name) for name in ("acc", "acc_norm", "acc_bytes")}
        scalars = {name: share.value for name, share in kinds.items()}
        if answers.acc.count > 1:
            scalars["acc_stderr"] = answers.acc.stderr
        return {f"eval/{self._name}/{name}": value for name, value in scalars.items()}

    def _check_lengths(self, length: int) -> None:
        longest = max(len(a) + len(b) for a, b in self._requests)
        if longest > length + 1:
            raise ValueError(
                f"the questions must fit the model, got one of {longest} tokens for "
                f"length={length}; pass length={longest - 1} or leave that question out"
            )


def _requests(
    tokenizer: Tokenizer | HuggingFaceTokenizer, questions: Sequence[Question], *, bos: bool | None
) -> list[tuple[list[int], list[int]]]:
    if not questions:
        raise ValueError("there must be at least one question, got questions=[]; pass some")
    encoder = TextEncoder(tokenizer, bos=bos)
    return [
        encoder.pair(question.context, question.delimiter + choice)
        for question in questions
        for choice in question.choices
    ]


def _answers(questions: Sequence[Question], found: Likelihoods) -> Answers:
    right: dict[str, list[bool]] = {"acc": [], "acc_norm": [], "acc_bytes": []}
    start = 0
    for question in questions:
        logps = found.logps[start : start + len(question.choices)]
        start += len(question.choices)
        sizes = {
            "acc": np.ones(len(logps)),
            "acc_norm": np.array([len(choice) for choice in question.choices]),
            "acc_bytes": np.array([len(choice.encode()) for choice in question.choices]),
        }
        for name, size in sizes.items():
            right[name].append(int(np.argmax(logps / size)) == question.answer)
    return Answers(found=found, **{name: Share.of(of_one) for name, of_one in right.items()})

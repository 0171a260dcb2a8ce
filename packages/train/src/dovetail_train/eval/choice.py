# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Multiple choice: the model's answer is the most likely of the given choices.

Longer answers are less likely whatever their content. So each question is scored three ways, under
the names of lm-evaluation-harness: Σ log p (acc), divided by the characters of the answer
(acc_norm), and divided by its bytes (acc_bytes), independent of tokenizer and script.
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
from dovetail_train.step.state import State

if TYPE_CHECKING:
    from dovetail_train.loop.trainer import Trainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A question with choices.

    Args:
        context: Text before the choice, or its ids as they are, such as a rendered chat. After ids
            a choice is encoded alone.
        choices: Texts to choose from.
        answer: Index of the right choice.
        delimiter: Text between context and choice; not part of the choice's length.
    """

    context: str | Sequence[int]
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
    """The share of questions answered right.

    Attributes:
        value: The share.
        stderr: The sample's standard deviation (divided by count − 1) over sqrt(count); NaN for
            one.
        count: Number of questions.
    """

    value: float
    stderr: float
    count: int

    @classmethod
    def of(cls, right: Sequence[bool]) -> "Share":
        """Returns the share of True in `right`, at least one value."""
        count, value = len(right), sum(right) / len(right)
        spread = math.sqrt(value * (1 - value) / (count - 1)) if count > 1 else math.nan
        return cls(value=value, stderr=spread, count=count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answers:
    """Results of `multiple_choice`.

    Attributes:
        acc: By log-likelihood.
        acc_norm: By log-likelihood per character.
        acc_bytes: By log-likelihood per byte.
        likelihoods: Result of `loglikelihood` for each choice of each question in turn. Its `cut`
            counts context tokens that did not fit.
    """

    acc: Share
    acc_norm: Share
    acc_bytes: Share
    likelihoods: Likelihoods


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
    progress: Callable[[int], None] | None = None,
) -> Answers:
    """Scores questions by log-likelihood. Of equal scores the first choice wins.

    Args:
        model: A causal decoder.
        tokenizer: Its tokenizer.
        questions: At least one question.
        length: Largest number of tokens per row.
        rows: Rows per batch.
        bos: Begin a text with begin-of-text; see `TextEncoder`.
        attention: See `lm_loss`.
        mesh: Devices for the rows. Default: the mesh of the model's arrays.
        progress: Receives the number of choices of each finished batch.

    Raises:
        ValueError: As `loglikelihood`, and without questions.
    """
    requests = _requests(tokenizer, questions, bos=bos)
    options = {"length": length, "rows": rows, "attention": attention, "mesh": mesh}
    likelihoods = loglikelihood(model, requests, progress=progress, **options)
    return _answers(questions, likelihoods)


class MultipleChoice:
    """A hook that reports `multiple_choice` as "eval/NAME/acc", "acc_norm", "acc_bytes",
    "acc_stderr".

    The model is in evaluation mode and in the trainer's precision.

    Args:
        tokenizer: The model's tokenizer.
        questions: Questions.
        every: Steps between evaluations.
        name: Prefix of the scalars.
        length: Largest number of tokens per row.
        rows: Rows per batch.
        bos: See `multiple_choice`.
        attention: See `lm_loss`.

    Raises:
        ValueError: A question does not fit `length`. Cut, it would be another question.
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
        likelihoods = loglikelihood(model, self._requests, mesh=mesh, **self._options)
        answers = _answers(self._questions, likelihoods)
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
        if isinstance(question.context, str)
        else (list(question.context), encoder.encode(question.delimiter + choice, bos=False))
        for question in questions
        for choice in question.choices
    ]


def _answers(questions: Sequence[Question], likelihoods: Likelihoods) -> Answers:
    right: dict[str, list[bool]] = {"acc": [], "acc_norm": [], "acc_bytes": []}
    start = 0
    for question in questions:
        logps = likelihoods.logps[start : start + len(question.choices)]
        start += len(question.choices)
        sizes = {
            "acc": np.ones(len(logps)),
            "acc_norm": np.array([len(choice) for choice in question.choices]),
            "acc_bytes": np.array([len(choice.encode()) for choice in question.choices]),
        }
        for name, size in sizes.items():
            right[name].append(int(np.argmax(logps / size)) == question.answer)
    return Answers(
        likelihoods=likelihoods, **{name: Share.of(of_one) for name, of_one in right.items()}
    )

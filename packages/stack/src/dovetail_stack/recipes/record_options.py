# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of runs that tune a model on records: conversations, or pairs of answers.

They are plain values with the metadata of `options`. Imports no library.
"""

import datetime
from dataclasses import dataclass
from typing import ClassVar, Literal

from dovetail_stack.recipes.fields import (
    above_zero,
    absolute,
    at_least,
    check_local,
    declared,
    needed,
)
from dovetail_stack.recipes.options import Batching, Monitoring, Tuning

LOSSES = ("dpo", "orpo", "simpo", "cpo", "kto")
WITH_REFERENCE = ("dpo", "kto")
SMOOTHED = ("dpo", "cpo")
BETAS = {"dpo": 0.1, "orpo": 0.1, "simpo": 2.0, "cpo": 0.1, "kto": 0.1}  # as their papers have them
KINDS = {"dpo": "sigmoid", "cpo": "sigmoid", "kto": "kto"}  # the first of those losses with several

CHATML = "chatml"
TEMPLATE_HELP = "chat template instead of the model's: a .jinja file, or chatml"
DATE_HELP = "day that a template with a date writes"


def template_name(text: str) -> str:
    """Returns the absolute path of a template; the name of one stays as it is."""
    return text if text == CHATML else absolute(text)


@dataclass(frozen=True, kw_only=True)
class Examples:
    """The records to learn from.

    Args:
        records: JSON lines or Parquet files, all of one kind.
        held_out: Share of the records to hold out, in (0, 1).
        max_corrupt: Damaged records that may be left out.
        json_columns: See `dovetail_data.parquet`.
    """

    records: tuple[str, ...] = needed(
        "file of JSON lines or Parquet, or several; one record is one example",
        nargs="+",
        metavar="FILE",
    )
    held_out: float = declared(0.05, "share of the records to hold out, in (0, 1)", metavar="SHARE")
    max_corrupt: int = declared(
        0, "damaged records that may be left out; they are listed with file and line"
    )
    json_columns: tuple[str, ...] = declared(
        (),
        "columns of Parquet files that hold JSON text, such as tools or "
        "messages.tool_calls.function.arguments",
        type=str,
        nargs="+",
        metavar="NAME",
    )

    def __post_init__(self) -> None:
        for file in self.records:
            check_local("records", file)
        if not 0 < self.held_out < 1:
            raise ValueError(
                f"held_out must lie between 0 and 1, got held_out={self.held_out}: try 0.05"
            )
        at_least(self, 0, "max_corrupt")


@dataclass(frozen=True, kw_only=True)
class Dialogue:
    """The chat template.

    Args:
        template: Jinja file, or "chatml". None: the template of the model's directory.
        date: Day that templates with a date write, YYYY-MM-DD.
        ignore_keys: See `dovetail_data.Chat`.
    """

    template: str | None = declared(
        None,
        TEMPLATE_HELP + "; it is exported with the model",
        type=template_name,
        metavar="FILE|chatml",
    )
    date: str | None = declared(None, DATE_HELP, type=str, metavar="YYYY-MM-DD")
    ignore_keys: tuple[str, ...] = declared(
        (),
        "keys of messages to leave out, though the template does not read them",
        type=str,
        nargs="+",
        metavar="KEY",
    )

    def __post_init__(self) -> None:
        if self.date is None:
            return
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError as error:
            raise ValueError(
                f"date must be a day as YYYY-MM-DD, got date={self.date!r} ({error}): "
                "try date=2026-01-31"
            ) from error


@dataclass(frozen=True, kw_only=True)
class Conversations(Dialogue):
    """The chat template, and the messages that are trained.

    Args:
        train_on: See `dovetail_data.Chat`.
    """

    train_on: Literal["assistant", "last", "all"] = declared(
        "assistant",
        "messages that are trained: those of the assistant, the last of them, or all",
        choices=("assistant", "last", "all"),
    )


@dataclass(frozen=True, kw_only=True)
class Answers(Monitoring):
    """Monitoring of a model of answers, by held-out prompts.

    The answers to them before the first step and after the last are in RUN/samples.jsonl.

    Args:
        samples: Steps between further answers to them. 0: none.
        prompts: Held-out prompts to answer. 0: none.
        answer_tokens: Largest number of tokens of an answer.
        directory_sampling: Draw the answers as generation_config.json of the model suggests. False:
            take the likeliest tokens.
    """

    samples: int = declared(0, "steps between further answers in RUN/samples.jsonl; 0: none")
    prompts: int = declared(
        4, "held-out prompts answered before the first step and after the last; 0: none"
    )
    answer_tokens: int = declared(64, "most tokens of such an answer")
    directory_sampling: bool = declared(
        False, "draw answers as the model's generation_config.json suggests", action="store_true"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "samples", "prompts")
        at_least(self, 1, "answer_tokens")
        if self.samples and not self.prompts:
            raise ValueError(
                f"samples must have prompts to answer, got samples={self.samples}, prompts=0: "
                "pass prompts=4, or leave samples= out"
            )
        if self.directory_sampling and not self.prompts:
            raise ValueError(
                "directory_sampling must have prompts to answer, got directory_sampling=True, "
                "prompts=0: pass prompts=4, or leave directory_sampling= out"
            )


@dataclass(frozen=True, kw_only=True)
class Adapting(Tuning):
    """Settings of the training of a model on records, apart from its number of steps.

    Args:
        quantize: Codes of the frozen matrices below adapters (QLoRA, 2305.14314). None: float32.
    """

    quantize: Literal["int8", "int4"] | None = declared(
        None,
        "codes of the matrices below adapters, which are frozen; none: float32",
        type=str,
        choices=("int8", "int4"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantize and not self.lora_rank:
            raise ValueError(
                f"quantize must have adapters to train, got quantize={self.quantize}, lora_rank=0: "
                "pass lora_rank=16, or leave quantize= out"
            )


_GUARD = "skip a step if its loss or gradient norm exceeds the median by so many deviations; 0: "
_GUARD += "skip only steps that are not finite, since a loss near 0 has no scale"


@dataclass(frozen=True, kw_only=True)
class RewardTuning(Adapting):
    """Settings of the training of a reward model, apart from its number of steps.

    Args:
        guard_sigma: As in `Batching`. The loss of separable pairs nears 0, where a spike relative
            to the median means nothing.
    """

    guard_sigma: float = declared(0.0, _GUARD)


@dataclass(frozen=True, kw_only=True)
class PreferenceTuning(RewardTuning):
    """Settings of the training on preferences, apart from its number of steps.

    1e-6 is the rate of the DPO paper (2305.18290, appendix B). Adapters take ten times as much, as
    in `Tuning`.

    Args:
        learning_rate: Adam's peak. 0: 1e-6, or 1e-5 for adapters.
    """

    rates: ClassVar[tuple[float, float]] = (1e-6, 1e-5)
    learning_rate: float = declared(
        0.0, "Adam's peak per step; 0: 1e-6, or 1e-5 with adapters", metavar="RATE"
    )


@dataclass(frozen=True, kw_only=True)
class Preferring:
    """The loss of pairs and its reference.

    Args:
        loss: A loss of `dovetail_tune`.
        kind: Form of the loss, where it has several. None: sigmoid, or kto.
        beta: Scale of the rewards. None: that of the loss's paper.
        label_smoothing: Rate of flipped labels in [0, 0.5), for dpo and cpo.
        reference: Where the log-probabilities of the model before training come from. None: the
            model without its adapters; without adapters "field", and "frozen" for kto.
    """

    loss: Literal["dpo", "orpo", "simpo", "cpo", "kto"] = declared(
        "dpo", "loss of dovetail_tune", choices=LOSSES
    )
    kind: str | None = declared(
        None,
        "form of dpo, cpo or kto, such as ipo or hinge; none: sigmoid, or kto",
        type=str,
        metavar="NAME",
    )
    beta: float | None = declared(
        None,
        "scale of the rewards; none: "
        + ", ".join(f"{beta} for {loss}" for loss, beta in BETAS.items()),
        type=float,
    )
    label_smoothing: float = declared(
        0.0,
        "rate of flipped labels in [0, 0.5), for the forms of dpo and cpo that have it",
        metavar="RATE",
    )
    reference: Literal["field", "frozen"] | None = declared(
        None,
        "log-probabilities of the model before training: a field of the rows, computed once and "
        "kept in RUN/reference, or from a frozen copy; none: the model without its adapters, or "
        "else the field, or the copy for kto",
        type=str,
        choices=("field", "frozen"),
    )

    def __post_init__(self) -> None:
        if self.beta is not None and not 0 < self.beta < float("inf"):
            raise ValueError(f"beta must be above 0, got beta={self.beta}: leave it out")
        if self.label_smoothing and self.loss not in SMOOTHED:
            raise ValueError(
                f"label_smoothing must be for {' or '.join(SMOOTHED)}, got "
                f"label_smoothing={self.label_smoothing}, loss={self.loss}: leave it out"
            )
        if self.kind is not None and self.loss not in KINDS:
            raise ValueError(
                f"kind must be a form of {', '.join(KINDS)}, got kind={self.kind}, "
                f"loss={self.loss}, which has one form: leave kind= out"
            )
        if self.reference and self.loss not in WITH_REFERENCE:
            raise ValueError(
                f"reference must be for {' or '.join(WITH_REFERENCE)}, got "
                f"reference={self.reference}, loss={self.loss}, which has none: leave reference= "
                "out"
            )
        if self.reference == "field" and self.loss == "kto":
            raise ValueError(
                "reference must be frozen for kto, whose batches have other answers each time, "
                "got reference=field, loss=kto: pass reference=frozen, or leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class Rewarding:
    """The loss of a reward model.

    Args:
        center: Weight of the term that keeps rewards around 0 (2312.09244). 0: none.
        margin: Field of the records with the least difference of the rewards.
    """

    center: float = declared(
        0.0, "weight of the term that keeps rewards around 0; 0: none", metavar="WEIGHT"
    )
    margin: str | None = declared(
        None,
        "field of the records with the least difference of the two rewards",
        type=str,
        metavar="FIELD",
    )

    def __post_init__(self) -> None:
        if not 0 <= self.center < float("inf"):
            raise ValueError(
                f"center must be at least 0, got center={self.center}: try center=0.01"
            )


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """The texts of a record and the loss of their vectors.

    Args:
        query: Field of the records with the query.
        positive: Field with the text that belongs to it.
        negative: Field with a hard negative, which may be empty. None: no such texts.
        temperature: Divides the similarities, above 0.
        chunks: Parts of a batch that are encoded one after the other, to save memory.
    """

    query: str = declared("query", "field of the records with the query", metavar="FIELD")
    positive: str = declared(
        "positive", "field with the text that belongs to the query", metavar="FIELD"
    )
    negative: str | None = declared(
        None, "field with a text that seems to belong to it and does not", type=str, metavar="FIELD"
    )
    temperature: float = declared(0.05, "divides the similarities; above 0")
    chunks: int = declared(1, "parts of a batch encoded one after the other, to save memory")

    def __post_init__(self) -> None:
        above_zero(self, "temperature")
        at_least(self, 1, "chunks")
        if len(set(self.fields)) < len(self.fields):
            raise ValueError(
                f"the texts of a record must have fields of their own, got query={self.query}, "
                f"positive={self.positive}, negative={self.negative}: name different fields"
            )

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the texts of a group, in the order of its rows."""
        return (self.query, self.positive, *([self.negative] if self.negative else []))


@dataclass(frozen=True, kw_only=True)
class Encoding(Batching):
    """Settings of the training of an embedding model, apart from its number of steps.

    Args:
        learning_rate: Adam's peak per step, above 0.
        guard_sigma: As in `RewardTuning`.
    """

    learning_rate: float = declared(2e-5, "Adam's peak per step", metavar="RATE")
    guard_sigma: float = declared(0.0, _GUARD)

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero(self, "learning_rate")

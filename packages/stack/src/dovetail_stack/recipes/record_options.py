# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of runs that begin from a model: on text, or on records such as conversations.

They are plain values with the metadata of `options`. Imports no library.
"""

import datetime
import os
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from dovetail_stack.recipes.options import (
    Batching,
    Monitoring,
    TextMonitoring,
    above_zero,
    absolute,
    at_least,
    check_local,
    check_share,
    declared,
    needed,
    switch,
)

WITH_REFERENCE = ("dpo", "kto")
SMOOTHED = ("dpo", "cpo")
BETAS = {"dpo": 0.1, "orpo": 0.1, "simpo": 2.0, "cpo": 0.1, "kto": 0.1}  # as their papers have them
KINDS = {"dpo": "sigmoid", "cpo": "sigmoid", "kto": "kto"}  # the first of those losses with several

CHATML = "chatml"
TEMPLATE_HELP = "chat template instead of the model's: a .jinja file, or chatml"
DATE_HELP = "day that a template with a date writes"

_MODEL = "Hugging Face directory with a tokenizer, a finished run, or a Hub id"
_ALLOW = "an unknown key of its config.json to accept; may be repeated"
_IGNORE = "extra tensors to leave out, as '**.inv_freq'; may be repeated"
_KEYS: dict[str, Any] = {"action": "append", "metavar": "KEY"}
_PATTERNS: dict[str, Any] = {**_KEYS, "metavar": "PATTERN"}


def model_path(path: str) -> str:
    """Returns the absolute path of a directory; an id of the Hugging Face Hub stays as it is."""
    if os.path.exists(path) or path.count("/") != 1:
        return absolute(path)
    from dovetail_models.hf.hub import is_id

    return path if is_id(path) else absolute(path)


def template_name(text: str) -> str:
    """Returns the absolute path of a template; the name of one stays as it is."""
    return text if text == CHATML else absolute(text)


def _needs(values: Any, name: str, what: str, **other: int) -> None:
    """Raises ValueError if `name` is set and the other field is 0; `other` has a good value."""
    ((needed, example),) = other.items()
    if getattr(values, name) and not getattr(values, needed):
        raise ValueError(
            f"{name} must have {what}, got {name}={getattr(values, name)}, {needed}=0: pass "
            f"{needed}={example}, or leave {name}= out"
        )


@dataclass(frozen=True, kw_only=True)
class Source:
    """The model to train on."""

    model: str = needed(_MODEL, type=model_path, metavar="MODEL")
    allow: tuple[str, ...] = declared((), _ALLOW, **_KEYS)
    ignore: tuple[str, ...] = declared((), _IGNORE, **_PATTERNS)


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """The teacher and its weight in the loss."""

    teacher: str = needed(_MODEL, type=model_path, metavar="MODEL")
    alpha: float = declared(
        0.5, "weight of the teacher in the loss, in [0, 1]; the text has the rest", metavar="WEIGHT"
    )
    temperature: float = declared(2.0, "divides the logits of both models; above 0")
    teacher_precision: Literal["float32", "bfloat16"] = declared(
        "float32", "dtype of the teacher's parameters"
    )
    allow: tuple[str, ...] = declared((), _ALLOW, **_KEYS)
    ignore: tuple[str, ...] = declared((), _IGNORE, **_PATTERNS)

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1 or not self.temperature > 0:
            raise ValueError(
                f"alpha must lie in [0, 1] and temperature above 0, got alpha={self.alpha}, "
                f"temperature={self.temperature}: try alpha=0.5, temperature=2"
            )


@dataclass(frozen=True, kw_only=True)
class Tuning(Batching):
    """Settings of continued training, apart from its number of steps.

    Adapters take ten times the rate of whole matrices, where runs of both agree best (Schulman et
    al. 2025, "LoRA Without Regret").
    """

    rates: ClassVar[tuple[float, float]] = (2e-5, 2e-4)  # without adapters, and with
    learning_rate: float = declared(
        0.0, "Adam's peak per step; 0: 2e-5, or 2e-4 with adapters", metavar="RATE"
    )
    lora_rank: int = declared(0, "rank of the adapters, trained alone; 0: train every parameter")
    lora_alpha: float = declared(32.0, "adapters are scaled by alpha / rank")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "lora_rank", "learning_rate")
        if not self.learning_rate:  # said as what it will be, in run.json too
            object.__setattr__(self, "learning_rate", self.rates[bool(self.lora_rank)])


@dataclass(frozen=True, kw_only=True)
class SourceMonitoring(TextMonitoring):
    """Monitoring of a model whose samples may be drawn as a published directory suggests."""

    directory_sampling: bool = switch("draw samples as the model's generation_config.json suggests")

    def __post_init__(self) -> None:
        super().__post_init__()
        _needs(self, "directory_sampling", "samples to draw", samples=100)


@dataclass(frozen=True, kw_only=True)
class Examples:
    """The records to learn from; see `dovetail_data.parquet` for columns that hold JSON."""

    records: tuple[str, ...] = needed(
        "file of JSON lines or Parquet, or several; one record is one example", metavar="FILE"
    )
    held_out: float = declared(0.05, "share of the records to hold out, in (0, 1)", metavar="SHARE")
    max_corrupt: int = declared(
        0, "damaged records that may be left out; they are listed with file and line"
    )
    json_columns: tuple[str, ...] = declared(
        (),
        "columns of Parquet files that hold JSON text, such as tools or "
        "messages.tool_calls.function.arguments",
        metavar="NAME",
    )

    def __post_init__(self) -> None:
        for file in self.records:
            check_local("records", file)
        check_share(self.held_out)
        at_least(self, 0, "max_corrupt")


@dataclass(frozen=True, kw_only=True)
class Dialogue:
    """The chat template; see `dovetail_data.Chat`."""

    template: str | None = declared(
        None,
        TEMPLATE_HELP + "; it is exported with the model",
        type=template_name,
        metavar="FILE|chatml",
    )
    date: str | None = declared(None, DATE_HELP, metavar="YYYY-MM-DD")
    ignore_keys: tuple[str, ...] = declared(
        (), "keys of messages to leave out, though the template does not read them", metavar="KEY"
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
    """The chat template, and the messages that are trained."""

    train_on: Literal["assistant", "last", "all"] = declared(
        "assistant", "messages that are trained: those of the assistant, the last of them, or all"
    )


@dataclass(frozen=True, kw_only=True)
class Answers(Monitoring):
    """Monitoring of a model of answers, by held-out prompts.

    The answers to them before the first step and after the last are on the page of the run.
    """

    samples: int = declared(0, "steps between further answers; 0: none")
    prompts: int = declared(
        4, "held-out prompts answered before the first step and after the last; 0: none"
    )
    answer_tokens: int = declared(64, "most tokens of such an answer")
    directory_sampling: bool = switch("draw answers as the model's generation_config.json suggests")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "samples", "prompts")
        at_least(self, 1, "answer_tokens")
        _needs(self, "samples", "prompts to answer", prompts=4)
        _needs(self, "directory_sampling", "prompts to answer", prompts=4)


@dataclass(frozen=True, kw_only=True)
class Adapting(Tuning):
    """Settings of the training of a model on records, apart from its number of steps.

    Adapters over quantized matrices are those of QLoRA (2305.14314).
    """

    quantize: Literal["int8", "int4"] | None = declared(
        None, "codes of the matrices below adapters, which are frozen; none: float32"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _needs(self, "quantize", "adapters to train", lora_rank=16)


_GUARD = "skip a step if its loss or gradient norm exceeds the median by so many deviations; 0: "
_GUARD += "skip only steps that are not finite, since a loss near 0 has no scale"


@dataclass(frozen=True, kw_only=True)
class RewardTuning(Adapting):
    """Settings of the training of a reward model, apart from its number of steps."""

    guard_sigma: float = declared(0.0, _GUARD)


@dataclass(frozen=True, kw_only=True)
class PreferenceTuning(RewardTuning):
    """Settings of the training on preferences, apart from its number of steps.

    1e-6 is the rate of the DPO paper (2305.18290, appendix B). Adapters take ten times as much, as
    in `Tuning`.
    """

    rates: ClassVar[tuple[float, float]] = (1e-6, 1e-5)
    learning_rate: float = declared(
        0.0, "Adam's peak per step; 0: 1e-6, or 1e-5 with adapters", metavar="RATE"
    )


@dataclass(frozen=True, kw_only=True)
class Preferring:
    """The loss of pairs and its reference."""

    loss: Literal["dpo", "orpo", "simpo", "cpo", "kto"] = declared("dpo", "loss of dovetail_tune")
    kind: str | None = declared(
        None, "form of dpo, cpo or kto, such as ipo or hinge; none: sigmoid, or kto", metavar="NAME"
    )
    beta: float | None = declared(
        None,
        "scale of the rewards; none: "
        + ", ".join(f"{beta} for {loss}" for loss, beta in BETAS.items()),
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
    )

    def __post_init__(self) -> None:
        if self.beta is not None:
            above_zero(self, "beta")
        having = {"label_smoothing": SMOOTHED, "kind": KINDS, "reference": WITH_REFERENCE}
        for name, losses in having.items():
            value = getattr(self, name)
            if value and self.loss not in losses:
                raise ValueError(
                    f"{name} must be for {' or '.join(losses)}, got {name}={value}, "
                    f"loss={self.loss}, which has none: leave {name}= out"
                )
        if self.reference == "field" and self.loss == "kto":
            raise ValueError(
                "reference must be frozen for kto, whose batches have other answers each time, "
                "got reference=field, loss=kto: pass reference=frozen, or leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class Rewarding:
    """The loss of a reward model. The term around 0 is that of 2312.09244."""

    center: float = declared(
        0.0, "weight of the term that keeps rewards around 0; 0: none", metavar="WEIGHT"
    )
    margin: str | None = declared(
        None, "field of the records with the least difference of the two rewards", metavar="FIELD"
    )

    def __post_init__(self) -> None:
        at_least(self, 0, "center")


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """The texts of a record and the loss of their vectors."""

    query: str = declared("query", "field of the records with the query", metavar="FIELD")
    positive: str = declared(
        "positive", "field with the text that belongs to the query", metavar="FIELD"
    )
    negative: str | None = declared(
        None, "field with a text that seems to belong to it and does not", metavar="FIELD"
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
    """Settings of the training of an embedding model, apart from its number of steps."""

    learning_rate: float = declared(2e-5, "Adam's peak per step", metavar="RATE")
    guard_sigma: float = declared(0.0, _GUARD)

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero(self, "learning_rate")

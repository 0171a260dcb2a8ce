# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`run.json`: the recipe and the settings of a training run, so that it resumes as the same run.

Each recipe has a frozen class of settings, made of the parts that it needs, and each part's fields
are options of the command. A field is defined once and is everywhere: in the help, in the file,
in the comparison of a resumed run with what was given, and of runs with each other.
"""

import contextlib
import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from dovetail_stack.recipes.options import (
    Batching,
    Distillation,
    Duration,
    Files,
    Monitoring,
    Shape,
    Source,
    Training,
    Tuning,
    Vocabulary,
)

FILE = "run.json"
S = TypeVar("S", bound="Settings")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of every recipe. Paths are absolute, so that a run resumes from any folder.

    Attributes:
        duration: Its steps are None until the corpus, and the speed of this machine, are known.
        skipped: Names of files below the text's directory that hold no text. None: not known yet.
    """

    recipe: ClassVar[str]
    files: Files
    duration: Duration = field(default_factory=Duration)
    monitoring: Monitoring = field(default_factory=Monitoring)
    training: Batching = field(default_factory=Batching)
    skipped: tuple[str, ...] | None = None

    def with_steps(self: S, steps: int) -> S:
        """The same, `steps` long."""
        return dataclasses.replace(self, duration=dataclasses.replace(self.duration, steps=steps))

    def save(self, run: Path) -> None:
        """Writes `run`/run.json in one piece."""
        run.mkdir(parents=True, exist_ok=True)
        partial = run / f"{FILE}.partial"
        values = {"recipe": self.recipe, "settings": dataclasses.asdict(self)}
        partial.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, run / FILE)


@dataclass(frozen=True, kw_only=True)
class Pretrain(Settings):
    """Train a Llama, and its tokenizer, from nothing on the text files of a directory."""

    recipe: ClassVar[str] = "pretrain"
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    shape: Shape = field(default_factory=Shape)
    training: Training = field(default_factory=Training)


@dataclass(frozen=True, kw_only=True)
class Continue(Settings):
    """Train a Hugging Face directory's model on, whole or by adapters that are merged at the end.

    The export is in float32, as it was trained: dovetail models convert casts it.
    """

    recipe: ClassVar[str] = "continue"
    source: Source
    training: Tuning = field(default_factory=Tuning)


@dataclass(frozen=True, kw_only=True)
class Distil(Settings):
    """Train a small Llama on text and on the logits of a teacher, whose tokenizer it takes."""

    recipe: ClassVar[str] = "distil"
    distillation: Distillation
    shape: Shape = field(default_factory=Shape)
    training: Training = field(default_factory=Training)


RECIPES: dict[str, type[Settings]] = {kind.recipe: kind for kind in (Pretrain, Continue, Distil)}


def parts(kind: type[Settings]) -> dict[str, Any]:
    """{name: class} of the parts that a recipe's settings are made of."""
    fields = dataclasses.fields(kind)
    return {item.name: item.type for item in fields if dataclasses.is_dataclass(item.type)}


def option(name: str) -> str:
    """The option that sets a field."""
    return f"--{name.replace('_', '-')}"


def load(run: Path) -> Settings:
    """Reads `run`/run.json; ValueError if another version of the command wrote it."""
    path = run / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        kind, values = RECIPES[content["recipe"]], content["settings"]
        skipped = values.pop("skipped")
        found = parts(kind)
        if values.keys() != found.keys():
            raise KeyError(*sorted(values.keys() ^ found.keys()))
        made = {name: _part(found[name], values[name]) for name in found}
        return kind(**made, skipped=None if skipped is None else tuple(skipped))
    except (AttributeError, KeyError, TypeError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(
            f"{str(path)!r} must hold settings that this version of dovetail wrote "
            f"({type(error).__name__}: {error}): start a new run with another --out"
        ) from error


def _part(kind: Any, values: dict[str, Any]) -> Any:
    """JSON has no tuples."""
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def create(kind: type[S], given: dict[str, Any]) -> S:
    """Settings from the options that were given, by their flat names; the rest are defaults.

    Raises ValueError for one that a new run needs and that is not given.
    """
    made = {}
    for name, part in parts(kind).items():
        fields = dataclasses.fields(part)
        for item in fields:
            if item.default is dataclasses.MISSING and item.name not in given:
                raise ValueError(
                    f"a new run of {kind.recipe} needs {item.name}, got none: pass "
                    f"{option(item.name)} DIR, a {item.metadata['help']}"
                )
        made[name] = part(**{f.name: given[f.name] for f in fields if f.name in given})
    return kind(**made)


def flat(stored: Settings) -> dict[str, Any]:
    """{field: value} of all parts: no two parts have a field of the same name."""
    values = dataclasses.asdict(stored)
    return {k: v for name in parts(type(stored)) for k, v in values[name].items()}


def differences(given: dict[str, Any], stored: Settings) -> list[str]:
    """Says of each option in `given` that the stored run has another value for it, both values."""
    known = flat(stored)
    wanted = {**known, **given}
    with contextlib.suppress(ValueError):  # of values that do not fit those of the run
        wanted = flat(create(type(stored), wanted))  # where a 0 stands for a default
    return [
        f"{option(name)} {value} (the run has {known[name]})"
        for name, value in given.items()
        if wanted[name] != known[name]
    ]

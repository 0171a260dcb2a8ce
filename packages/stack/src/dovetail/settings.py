# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`run.json`: what a training run was started with, so that it resumes as the same run."""

import dataclasses
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail.recipes.options import Shape, Training

FILE = "run.json"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A run of `dovetail train`. Paths are absolute, so that it resumes from any folder."""

    text: str
    pattern: str = "**/*"
    skip: tuple[str, ...] = ()
    held_out: float = 0.05
    vocab_size: int = 4096
    minutes: float | None = None
    steps: int | None = None  # none until the corpus, and the speed of this machine, are known
    shape: Shape = field(default_factory=Shape)
    training: Training = field(default_factory=Training)

    def save(self, run: Path) -> None:
        """Writes `run`/run.json in one piece."""
        run.mkdir(parents=True, exist_ok=True)
        partial = run / f"{FILE}.partial"
        partial.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")
        os.replace(partial, run / FILE)


def load(run: Path) -> Settings:
    """Reads `run`/run.json; ValueError if another version of the command wrote it."""
    path = run / FILE
    try:
        values = json.loads(path.read_text())
        return Settings(
            **{
                **values,
                "skip": tuple(values["skip"]),
                "shape": Shape(**values["shape"]),
                "training": Training(**values["training"]),
            }
        )
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"{str(path)!r} must hold settings that this version of dovetail wrote ({error}): "
            "start a new run with another --out"
        ) from error


def create(given: dict[str, Any]) -> Settings:
    """Settings from the options that were given, by their flat names; the rest are defaults."""
    parts = {"shape": Shape, "training": Training}
    values = dict(given)
    for name, kind in parts.items():
        names = {item.name for item in dataclasses.fields(kind)}
        values[name] = kind(**{key: values.pop(key) for key in names & values.keys()})
    return Settings(**values)


def differences(given: dict[str, Any], stored: Settings) -> list[str]:
    """Says of each option in `given` that the stored run has another value for it, both values."""
    values = dataclasses.asdict(stored)
    known = {**values.pop("shape"), **values.pop("training"), **values}
    return [
        f"--{name.replace('_', '-')} {value} (the run has {known[name]})"
        for name, value in given.items()
        if value != known[name]
    ]

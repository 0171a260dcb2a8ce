# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`run.json`: the recipe and the settings of a training run.

Each recipe has a frozen class of settings, grouped into dataclasses. A field is defined once. It
is an option of the command, with its help and default, an entry of the file, and a row in the
comparison of runs.
"""

import argparse
import contextlib
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from dovetail_runs import DamagedRun, Run, from_options
from dovetail_runs.run import SETTINGS
from dovetail_stack.recipes import options
from dovetail_stack.recipes import record_options as records

FILE = SETTINGS  # of a run
# Settings that a later launch may change. The others make another run: text, model, batch, seed.
CHANGEABLE = frozenset(
    (
        *("steps", "save_every", "remat", "accumulate", "precision", "ema", "guard_sigma"),
        *("learning_rate", "matrix_learning_rate", "balance", "alpha", "temperature", "profile"),
        *("allow", "ignore", "samples", "prompt", "prompts", "answer_tokens", "directory_sampling"),
    )
)
# Between 0 and another value these add or drop arrays of the run's state.
CONVERTED = ("ema", "guard_sigma")
AXES = tuple(item.name for item in dataclasses.fields(options.Devices))  # of the mesh
S = TypeVar("S", bound="Settings")


@dataclass(frozen=True, kw_only=True)
class Rewind:
    """Steps to go back to and to leave out; see `rewinding`.

    Attributes:
        asked: The step that was asked for, or None.
        to: Step of the checkpoint to go on from.
        leave_out: Steps [first, end) to leave out, as they were asked for.
    """

    asked: int | None
    to: int
    leave_out: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings shared by all recipes. Paths are absolute, so a run resumes from any folder.

    Attributes:
        duration: Length of the run. `steps` is None until corpus and speed are known.
        monitoring: Traces during training, and samples where a model writes text.
        training: Batch, precision and the like.
        skipped: Names of files without text, below its directory. None: not known, or no text.
        leave_out: Steps [first, end) whose batches are passed over. Each is numbered as in the run
            after those before it.
        rewind: A rewind that is pending.
        keys: Keys of the config.json that describes the model, as the first launch read them.
        asked: Options as they were typed, where the run has less: ids that a text does not yield.
    """

    recipe: ClassVar[str]
    duration: options.Duration = field(default_factory=options.Duration)
    monitoring: options.Monitoring = field(default_factory=options.Monitoring)
    training: options.Batching = field(default_factory=options.Batching)
    skipped: tuple[str, ...] | None = None
    leave_out: tuple[tuple[int, int], ...] = ()
    rewind: Rewind | None = None
    keys: dict[str, Any] | None = None
    asked: dict[str, Any] | None = None

    def with_steps(self: S, steps: int) -> S:
        """Returns a copy with the number of steps."""
        return dataclasses.replace(self, duration=dataclasses.replace(self.duration, steps=steps))

    @property
    def accepted(self) -> dict[str, tuple[str, ...]]:
        """Arguments of `dovetail_models.accepting` for the model that the run begins from."""
        models = records.Source | records.Distillation
        groups = [group for group in vars(self).values() if isinstance(group, models)]
        return {name: getattr(group, name) for group in groups for name in ("allow", "ignore")}

    def save(self, run: Path) -> None:
        """Writes `run`/run.json atomically."""
        Run(run).save_settings(self, recipe=self.recipe)


@dataclass(frozen=True, kw_only=True)
class FromText(Settings):
    """The settings of recipes that train on the text of a directory."""

    files: options.Files
    monitoring: options.TextMonitoring = field(default_factory=options.TextMonitoring)


@dataclass(frozen=True, kw_only=True)
class FromRecords(Settings):
    """The settings of recipes that tune a model on records."""

    examples: records.Examples
    source: records.Source


@dataclass(frozen=True, kw_only=True)
class FromMessages(FromRecords):
    """The settings of recipes that tune a decoder on conversations or pairs of answers."""

    dialogue: records.Dialogue = field(default_factory=records.Dialogue)
    training: records.Adapting = field(default_factory=records.Adapting)


@dataclass(frozen=True, kw_only=True)
class Pretrain(FromText):
    """Train a decoder of any family, and its tokenizer, from nothing on the text of a directory.

    Args:
        vocabulary: The tokenizer.
        shape: Family and sizes of the model.
        training: Batch and learning rates.
    """

    recipe: ClassVar[str] = "pretrain"
    vocabulary: options.Vocabulary = field(default_factory=options.Vocabulary)
    shape: options.Shape = field(default_factory=options.Shape)
    training: options.Training = field(default_factory=options.Training)


@dataclass(frozen=True, kw_only=True)
class Continue(FromText):
    """Train a Hugging Face directory's model on, whole or by adapters that are merged at the end.

    The export is in float32, the dtype of training. `dovetail models convert` casts it.

    Args:
        source: The model.
        monitoring: Samples and profiles during training.
        training: Batch, adapters and the like.
    """

    recipe: ClassVar[str] = "continue"
    source: records.Source
    monitoring: records.SourceMonitoring = field(default_factory=records.SourceMonitoring)
    training: records.Tuning = field(default_factory=records.Tuning)


@dataclass(frozen=True, kw_only=True)
class Distil(FromText):
    """Train a small decoder on text and on the logits of a teacher, whose tokenizer it takes.

    Args:
        distillation: The teacher and its weight in the loss.
        monitoring: Samples and profiles during training.
        shape: Family and sizes of the student.
        training: Batch and learning rates.
    """

    recipe: ClassVar[str] = "distil"
    distillation: records.Distillation
    monitoring: records.SourceMonitoring = field(default_factory=records.SourceMonitoring)
    shape: options.Shape = field(default_factory=options.Shape)
    training: options.Training = field(default_factory=options.Training)


@dataclass(frozen=True, kw_only=True)
class Chat(FromMessages):
    """Tune a model on conversations: the answers are trained, the rest is read.

    A record is {"messages": [{"role": ..., "content": ...}, ...]}. With --lora-rank the adapters
    are exported too, for PEFT, as RUN/peft.
    """

    recipe: ClassVar[str] = "chat"
    dialogue: records.Conversations = field(default_factory=records.Conversations)
    monitoring: records.Answers = field(default_factory=records.Answers)


@dataclass(frozen=True, kw_only=True)
class Prefer(FromMessages):
    """Tune a model on pairs of answers to one prompt, one of them preferred.

    A record is {"prompt": ..., "chosen": ..., "rejected": ...}, messages or texts. A step of
    --global-batch N has N / 2 pairs. With --lora-rank the adapters are exported too, for PEFT, as
    RUN/peft.

    Args:
        preference: The loss and its reference.
        monitoring: Profiles, and answers to held-out prompts.
        training: Batch, adapters and the like.
    """

    recipe: ClassVar[str] = "prefer"
    preference: records.Preferring = field(default_factory=records.Preferring)
    monitoring: records.Answers = field(default_factory=records.Answers)
    training: records.PreferenceTuning = field(default_factory=records.PreferenceTuning)


@dataclass(frozen=True, kw_only=True)
class Reward(FromMessages):
    """Train a model to rate answers, on pairs of answers to one prompt.

    Records are those of prefer. RUN/hf is a sequence classifier of transformers with one label, the
    reward. Adapters are merged into it.
    """

    recipe: ClassVar[str] = "reward"
    reward: records.Rewarding = field(default_factory=records.Rewarding)
    training: records.RewardTuning = field(default_factory=records.RewardTuning)


@dataclass(frozen=True, kw_only=True)
class Embed(FromRecords):
    """Tune an encoder or a decoder to embed texts, on texts that belong together.

    A record is {"query": ..., "positive": ...}, texts, and may have a "negative". All other texts
    of a batch are negatives, so --accumulate is 1; --chunks saves memory. A step of --global-batch
    N has N / 2 records, or N / 3 with negatives.
    """

    recipe: ClassVar[str] = "embed"
    embedding: records.Embedding = field(default_factory=records.Embedding)
    training: records.Encoding = field(default_factory=records.Encoding)


RECIPES: dict[str, type[Settings]] = {
    kind.recipe: kind for kind in (Pretrain, Continue, Distil, Chat, Prefer, Reward, Embed)
}


ALIASES = {"chat": ("sft",), "prefer": ("dpo",)}  # other programs' words for a recipe


def parts(kind: type[Settings]) -> dict[str, Any]:
    """Returns {name: class} of the groups in a recipe's settings, first those that need values."""
    groups = {f.name: f.type for f in dataclasses.fields(kind) if dataclasses.is_dataclass(f.type)}

    def is_complete(name: str) -> bool:
        return all(x.default is not dataclasses.MISSING for x in dataclasses.fields(groups[name]))

    return {name: groups[name] for name in sorted(groups, key=is_complete)}


def option(name: str) -> str:
    """Returns the option of a field."""
    return f"--{name.replace('_', '-')}"


def fields_of(kind: type[Settings]) -> dict[str, dataclasses.Field[Any]]:
    """Returns {name: field} of all groups, in the order of `parts`. No two share a name."""
    return {item.name: item for group in parts(kind).values() for item in dataclasses.fields(group)}


def load(run: Path) -> Settings:
    """Reads `run`/run.json. Raises DamagedRun if it is damaged, or of another version."""
    stored = Run(run)
    try:
        return stored.settings_as(RECIPES[stored.recipe or ""])
    except (DamagedRun, KeyError) as error:
        raise DamagedRun(
            f"{str(run / FILE)!r} must hold settings that this version of dovetail wrote "
            f"({type(error).__name__}: {error}): start a new run with another --out"
        ) from error


def create(kind: type[S], given: dict[str, Any]) -> S:
    """Returns settings with the given options, by flat name, and defaults for the others.

    A shape has the sizes of its family. Raises ValueError if a required option is missing.
    """
    for name, item in fields_of(kind).items():
        if item.default is dataclasses.MISSING and name not in given:
            raise ValueError(
                f"a new run of {kind.recipe} needs {name}, got none: pass {option(name)} "
                f"{item.metadata['metavar']}, a {item.metadata['help']}"
            )
    made = from_options(kind, argparse.Namespace(**given))
    if not isinstance(made, Pretrain | Distil):
        return made
    from dovetail_stack.recipes.families import completed

    return dataclasses.replace(made, shape=completed(made.shape))


def given_of(values: dict[str, Any], kind: type[Settings]) -> dict[str, Any]:
    """Returns the given options of a recipe, in the types of its settings."""
    selected = {name: values[name] for name in fields_of(kind) if name in values}
    return {k: tuple(v) if isinstance(v, list) else v for k, v in selected.items()}


def new(values: dict[str, Any]) -> Settings:
    """Returns the settings of a new run from parsed arguments by name, with its recipe."""
    kind = RECIPES[values["recipe"]]
    return create(kind, given_of(values, kind))


def flat(stored: Settings) -> dict[str, Any]:
    """Returns {field: value} of all groups."""
    values = dataclasses.asdict(stored)
    return {k: v for name in parts(type(stored)) for k, v in values[name].items()}


def axes_of(values: Mapping[str, Any]) -> dict[str, int]:
    """Returns the sizes of the axes of the mesh, by the options of a command."""
    return {axis: values.get(axis, 1) for axis in AXES}


def differences(given: dict[str, Any], stored: Settings) -> dict[str, str]:
    """Returns {name: text} of each given option with another value in the stored run."""
    known, given = flat(stored), _without_asked(given, stored)
    wanted = {**known, **given}
    with contextlib.suppress(ValueError):  # of values that do not fit those of the run
        wanted = flat(create(type(stored), wanted))  # where a 0 stands for a default
    return {
        name: f"{option(name)} {value} (the run has {known[name]})"
        for name, value in given.items()
        if wanted[name] != known[name]
    }


def _without_asked(given: dict[str, Any], stored: Settings) -> dict[str, Any]:
    """Returns the given options but those that the run was asked for and could not have."""
    asked = stored.asked or {}
    return {k: value for k, value in given.items() if k not in asked or value != asked[k]}


def changed(given: dict[str, Any], stored: S) -> S:
    """Returns the stored settings with the given options. Raises ValueError if they do not fit."""
    kind = type(stored)
    made = create(kind, {**flat(stored), **_without_asked(given, stored)})
    return dataclasses.replace(stored, **{name: getattr(made, name) for name in parts(kind)})


def changes(before: Settings, after: Settings) -> dict[str, list[Any]]:
    """Returns {field: [before, after]} of the settings that differ."""
    old, new = flat(before), flat(after)
    return {name: [old[name], new[name]] for name in new if old[name] != new[name]}

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of a training run, as plain values: their declaration, and those of a new decoder.

The metadata of each field hold the help of `dovetail train RECIPE --help`, with its unit. Imports
no library.
"""

import math
import os
import re
from dataclasses import dataclass, field
from typing import Any, Literal

METRICS, CHECKPOINTS = "metrics.jsonl", "checkpoints"  # in the directory of a run
BALANCE = 0.01  # as in Fedus et al. 2021, 2101.03961, section 2.2
PATTERN_HELP = (
    "glob of the files below --text: *.py leaves out subfolders, **/*.py does not; "
    "**/*: all but hidden files"
)
_URL = re.compile(r"([a-z][a-z0-9+]+):/+")
_COPIES = {
    "gs": "gcloud storage cp -r URL .",
    "s3": "aws s3 sync URL .",
    "hf": "hf download org/name",
}


class RefusedError(ValueError):
    """Text, records or results that cannot be used as they are."""

    exit_code = 3  # of the command


def absolute(path: str) -> str:
    """Returns the absolute path, so a run resumes from any folder. An address stays as it is."""
    return path if _URL.match(path) else os.path.realpath(path)


def check_local(name: str, path: str | os.PathLike[str]) -> None:
    """Raises ValueError if a path is an address, such as gs://bucket/text.

    Args:
        name: Name of the argument.
        path: The path, as a string or a `Path`, which merges slashes.
    """
    if scheme := _URL.match(os.fspath(path)):
        url = _URL.sub(r"\1://", os.fspath(path), count=1)
        copy = _COPIES.get(scheme[1], "curl -O URL").replace("URL", url)
        advice = f"copy it here ({copy}), and pass the path of the copy"
        if name == "out":
            advice = "name a directory here, and copy it afterwards"
        raise ValueError(f"{name} must be a path of this machine, got {name}={url}: {advice}")


def declared(default: Any, help: str, **parse: Any) -> Any:
    """Declares a field.

    Args:
        default: Its default.
        help: Its help, with the unit.
        **parse: Arguments of argparse that do not follow from its type; see
            `dovetail_runs.add_options`.
    """
    return field(default=default, metadata={"help": help, **parse})


def switch(help: str) -> Any:
    """Declares an option without a value: True if it is typed."""
    return declared(False, help, action="store_true")


def needed(help: str, **parse: Any) -> Any:
    """Declares a required directory, or other paths if `parse` says so."""
    return field(metadata={"help": help, "type": absolute, **parse})


def at_least(values: Any, least: int, *names: str) -> None:
    """Raises ValueError unless these fields are at least `least` and finite.

    Args:
        values: Settings.
        least: The smallest value.
        *names: Names of the fields.
    """
    for name in names:
        value = getattr(values, name)
        if not least <= value < math.inf:
            raise ValueError(f"{name} must be at least {least}, got {name}={value}: leave it out")


def above_zero(values: Any, *names: str) -> None:
    """Raises ValueError unless these fields are above 0 and finite."""
    for name in names:
        value = getattr(values, name)
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be above 0, got {name}={value}: leave it out")


def check_share(held_out: float) -> None:
    """Raises ValueError unless a held-out share lies between 0 and 1."""
    if not 0 < held_out < 1:
        raise ValueError(f"held_out must lie between 0 and 1, got held_out={held_out}: try 0.05")


def _divisors(number: int) -> str:
    return ", ".join(str(i) for i in range(1, number + 1) if number % i == 0)


@dataclass(frozen=True, kw_only=True)
class Files:
    """The text to train on."""

    text: str = needed("directory of UTF-8 text files", metavar="DIR")
    pattern: str = declared("**/*", PATTERN_HELP, metavar="GLOB")
    skip: tuple[str, ...] = declared((), "names of folders to leave out", metavar="NAME")
    held_out: float = declared(0.05, "share of the files to hold out, in (0, 1)", metavar="SHARE")

    def __post_init__(self) -> None:
        check_local("text", self.text)
        check_share(self.held_out)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The tokenizer trained on the text."""

    vocab_size: int = declared(4096, "ids of the tokenizer")

    def __post_init__(self) -> None:
        at_least(self, 258, "vocab_size")  # all bytes, and two that begin and end a text


@dataclass(frozen=True, kw_only=True)
class Duration:
    """Length of a run. Without either option it is one pass over the text."""

    steps: int | None = declared(None, "optimizer steps in all; a later launch may add some")
    minutes: float | None = declared(
        None, "minutes of training: as many steps as fit, 4 passes at the most", metavar="MINUTES"
    )

    def __post_init__(self) -> None:
        if self.steps is not None:
            at_least(self, 1, "steps")
        if self.minutes is not None:
            above_zero(self, "minutes")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A decoder to make: a family and its sizes, or a config.json. The tokenizer gives the ids.

    A head has embed / heads numbers, an even number for rotary embeddings. Sizes that are 0 here
    follow from the family: see `dovetail_models.Sizes`.
    """

    config: str | None = declared(
        None,
        "config.json of the model, or a directory with one, instead of the other options here",
        type=absolute,
        metavar="FILE",
    )
    family: str | None = declared(
        None, "family of decoders, such as llama, gemma3 or mixtral; none: llama", metavar="NAME"
    )
    embed: int = declared(0, "width of the residual stream; 0: 192")
    depth: int = declared(0, "layers; 0: 4")
    heads: int = declared(0, "query heads; 0: as many as give a head up to 64 numbers")
    kv_heads: int = declared(0, "key and value heads; 0: 1, where a family groups its heads")
    mlp: int = declared(0, "width of the dense feed-forward layers; 0: 512")
    experts: int = declared(0, "experts of a mixture, per layer; 0: 8")
    active_experts: int = declared(0, "experts per token; 0: 2")
    expert_mlp: int = declared(
        0, "width of an expert; 0: all active ones together are as wide as a dense layer"
    )

    def __post_init__(self) -> None:
        if self.config is None:  # said as what it will be, in run.json too
            object.__setattr__(self, "family", self.family or "llama")
            return
        check_local("config", self.config)
        given = {name: value for name, value in vars(self).items() if value and name != "config"}
        if given:
            values = ", ".join(f"{name}={value}" for name, value in given.items())
            raise ValueError(
                f"config must describe the whole model, got config={self.config} with {values}: "
                "leave these out and edit a copy of the file, or leave config= out"
            )


@dataclass(frozen=True, kw_only=True)
class Batching:
    """Settings of a step apart from the optimizer."""

    length: int = declared(256, "tokens in a row")
    global_batch: int = declared(4, "rows in a step, over all devices")
    accumulate: int = declared(1, "microbatches of a step")
    precision: Literal["float32", "bfloat16"] = declared(
        "float32", "dtype inside the loss; parameters stay float32"
    )
    remat: Literal["none", "attention", "all"] = declared(
        "none", "recomputed in the backward pass of each layer: nothing, all but attention, or all"
    )
    ema: float = declared(
        0.0,
        "decay per step of averaged parameters, which are then exported; 0: no average",
        metavar="DECAY",
    )
    guard_sigma: float = declared(
        6.0,
        "skip a step if its loss or gradient norm exceeds the median by so many deviations; 0: "
        "skip only steps that are not finite",
    )
    save_every: int = declared(0, "steps between checkpoints; 0: a tenth of the run")
    seed: int = declared(0, "seed of the initial parameters and the data order")

    def __post_init__(self) -> None:
        at_least(self, 1, "length", "global_batch", "accumulate")
        at_least(self, 0, "save_every", "seed", "guard_sigma")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must lie in [0, 1), got ema={self.ema}: try ema=0.999")
        if self.global_batch % self.accumulate:
            raise ValueError(
                f"accumulate must divide the rows of a step, got accumulate={self.accumulate}, "
                f"global_batch={self.global_batch}: pass one of {_divisors(self.global_batch)}"
            )

    def saves_every(self, steps: int) -> int:
        """Returns the steps between checkpoints of a run of `steps`."""
        return self.save_every or max(1, steps // 10)


@dataclass(frozen=True, kw_only=True)
class Training(Batching):
    """Settings of a training from scratch, apart from its number of steps."""

    learning_rate: float = declared(
        1e-2, "Adam's peak per step, for embeddings and norms", metavar="RATE"
    )
    matrix_learning_rate: float = declared(
        0.02, "Muon's peak per step, for matrices", metavar="RATE"
    )
    balance: float | None = declared(
        None,
        f"weight of a mixture's balance loss, which is 1 if a text uses all experts alike; none: "
        f"{BALANCE} in mixtures",
        metavar="WEIGHT",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero(self, "learning_rate", "matrix_learning_rate")
        if self.balance is not None:
            at_least(self, 0, "balance")


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """Profiles of training, beside the metrics."""

    profile: str | None = declared(
        None,
        "steps to trace, as 10:5 from step 10 on 5 of them, in RUN/trace with RUN/profile.html; "
        "the first is rounded up to a multiple of the count",
        metavar="FIRST:COUNT",
    )

    def __post_init__(self) -> None:
        if self.profile is not None and not re.fullmatch(r"[1-9]\d*:[1-9]\d*", self.profile):
            raise ValueError(
                "profile must be the first step and the number of steps, each at least 1, got "
                f"profile={self.profile!r}: pass profile=10:5"
            )

    @property
    def traced(self) -> tuple[int, int] | None:
        """The first step to trace and the number of steps, or None."""
        if self.profile is None:
            return None
        first, _, count = self.profile.partition(":")
        return int(first), int(count)


@dataclass(frozen=True, kw_only=True)
class TextMonitoring(Monitoring):
    """Monitoring of a model of text, by the continuation of one prompt."""

    samples: int = declared(0, "steps between samples of text, on the page of the run; 0: none")
    prompt: str = declared("The", "beginning of each sample", metavar="TEXT")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "samples")


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Axes of the mesh of devices."""

    data: int = declared(1, "ways to split the batch")
    fsdp: int = declared(1, "ways to split batch, parameters and optimizer")
    tensor: int = declared(1, "ways to split heads and hidden layers")
    context: int = declared(1, "ways to split rows into pieces of tokens")
    expert: int = declared(1, "ways to split experts, and the batch")

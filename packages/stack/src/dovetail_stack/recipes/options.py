# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Settings of a training run, as plain values. Imports no library.

The metadata of each field hold the help of `dovetail train RECIPE --help`, with its unit.
"""

import math
import os
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from dovetail_stack.recipes.fields import (
    above_zero,
    absolute,
    at_least,
    check_local,
    check_share,
    declared,
    needed,
    switch,
)

METRICS, CHECKPOINTS = "metrics.jsonl", "checkpoints"  # in the directory of a run
HEAD = 64  # numbers of a head, where the width allows it
# A decoder without other sizes: one that a CPU trains in minutes.
FAMILY, EMBED, DEPTH, MLP = "llama", 192, 4, 512
EXPERTS, ACTIVE = 8, 2  # of a mixture, as in Mixtral
BALANCE = 0.01  # as in Fedus et al. 2021, 2101.03961, section 2.2
PATTERN_HELP = (
    "glob of the files below --text: *.py leaves out subfolders, **/*.py does not; "
    "**/*: all but hidden files"
)

_MODEL = "Hugging Face directory with a tokenizer, a finished run, or a Hub id"
_ALLOW = "an unknown key of its config.json to accept; may be repeated"
_IGNORE = "extra tensors to leave out, as '**.inv_freq'; may be repeated"
_KEYS: dict[str, Any] = {"action": "append", "metavar": "KEY"}
_PATTERNS: dict[str, Any] = {**_KEYS, "metavar": "PATTERN"}


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
    follow from the family: see `dovetail_stack.recipes.families.completed`.
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
    embed: int = declared(0, f"width of the residual stream; 0: {EMBED}")
    depth: int = declared(0, f"layers; 0: {DEPTH}")
    heads: int = declared(0, f"query heads; 0: as many as give a head up to {HEAD} numbers")
    kv_heads: int = declared(0, "key and value heads; 0: 1, where a family groups its heads")
    mlp: int = declared(0, f"width of the dense feed-forward layers; 0: {MLP}")
    experts: int = declared(0, f"experts of a mixture, per layer; 0: {EXPERTS}")
    active_experts: int = declared(0, f"experts per token; 0: {ACTIVE}")
    expert_mlp: int = declared(
        0, "width of an expert; 0: all active ones together are as wide as a dense layer"
    )

    def __post_init__(self) -> None:
        sizes = [item.name for item in fields(self) if item.name not in ("config", "family")]
        at_least(self, 0, *sizes)
        if self.config is not None:
            check_local("config", self.config)
            self._refuse_sizes([name for name in ("family", *sizes) if getattr(self, name)])
            return
        # Said as what they will be, in run.json too.
        for name, default in {"family": FAMILY, "embed": EMBED, "depth": DEPTH}.items():
            object.__setattr__(self, name, getattr(self, name) or default)
        if self.embed % 2:
            raise ValueError(
                f"embed must be even, got embed={self.embed}: pass embed={self.embed + 1}"
            )
        if not self.heads:
            widths = range(min(HEAD, self.embed), 0, -1)
            width = next(d for d in widths if d % 2 == 0 and self.embed % d == 0)
            object.__setattr__(self, "heads", self.embed // width)
        if self.embed // 2 % self.heads:
            raise ValueError(
                f"heads must divide half of the width, got heads={self.heads}, embed={self.embed}: "
                f"pass one of {_divisors(self.embed // 2)}, or another width"
            )
        if self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads must divide the query heads, got kv_heads={self.kv_heads}, "
                f"heads={self.heads}: pass one of {_divisors(self.heads)}"
            )
        if self.active_experts > (self.experts or EXPERTS):
            raise ValueError(
                f"active_experts must be at most the experts, got active_experts="
                f"{self.active_experts}, experts={self.experts or EXPERTS}: pass more experts, or "
                f"active_experts={self.experts or EXPERTS}"
            )

    def _refuse_sizes(self, given: list[str]) -> None:
        if given:
            values = ", ".join(f"{name}={getattr(self, name)}" for name in given)
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
        if self.balance is not None and not 0 <= self.balance < math.inf:
            raise ValueError(
                f"balance must be at least 0, got balance={self.balance}: try balance={BALANCE}"
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
        if self.lora_rank < 0 or self.learning_rate < 0:
            raise ValueError(
                f"lora_rank and learning_rate must be at least 0, got lora_rank={self.lora_rank}, "
                f"learning_rate={self.learning_rate}: leave them out for the defaults"
            )
        if not self.learning_rate:  # said as what it will be, in run.json too
            object.__setattr__(self, "learning_rate", self.rates[bool(self.lora_rank)])


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """Traces during training, beside the metrics."""

    trace: int = declared(0, "first of 5 steps traced by jax.profiler, in RUN/trace; 0: none")

    def __post_init__(self) -> None:
        at_least(self, 0, "trace")


@dataclass(frozen=True, kw_only=True)
class TextMonitoring(Monitoring):
    """Monitoring of a model of text, by the continuation of one prompt."""

    samples: int = declared(0, "steps between samples of text, in RUN/samples.jsonl; 0: none")
    prompt: str = declared("The", "beginning of each sample", metavar="TEXT")

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "samples")


@dataclass(frozen=True, kw_only=True)
class SourceMonitoring(TextMonitoring):
    """Monitoring of a model whose samples may be drawn as a published directory suggests."""

    directory_sampling: bool = switch("draw samples as the model's generation_config.json suggests")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.directory_sampling and not self.samples:
            raise ValueError(
                "directory_sampling must have samples to draw, got directory_sampling=True, "
                "samples=0: pass samples=100, or leave directory_sampling= out"
            )


@dataclass(frozen=True, kw_only=True)
class Devices:
    """Axes of the mesh of devices."""

    data: int = declared(1, "ways to split the batch")
    fsdp: int = declared(1, "ways to split batch, parameters and optimizer")
    tensor: int = declared(1, "ways to split heads and hidden layers")
    context: int = declared(1, "ways to split rows into pieces of tokens")
    expert: int = declared(1, "ways to split experts, and the batch")


def model_path(path: str) -> str:
    """Returns the absolute path of a directory; an id of the Hugging Face Hub stays as it is."""
    if os.path.exists(path) or path.count("/") != 1:
        return absolute(path)
    from dovetail_models.hf.hub import is_id

    return path if is_id(path) else absolute(path)


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

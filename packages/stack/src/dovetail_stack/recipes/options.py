# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The numbers of a training run, as plain values that import no library.

Each field carries the sentence that `dovetail train RECIPE --help` shows, with its unit.
"""

import math
import os
from dataclasses import dataclass, field
from typing import Any, Literal

HEAD = 64  # numbers of a head, where the width allows it
_COMPUTE = ("float32", "bfloat16")


def absolute(path: str) -> str:
    """The path from the root, so that a run resumes from any folder."""
    return os.path.realpath(path)


def _option(default: Any, help: str, **parse: Any) -> Any:
    """parse: arguments of argparse beside help; the type is the default's unless given."""
    return field(default=default, metadata={"help": help, "parse": parse})


def _needed(help: str) -> Any:
    """A directory that a new run must be given."""
    return field(metadata={"help": help, "parse": {"type": absolute}})


def _at_least(values: Any, least: int, *names: str) -> None:
    """Raises ValueError unless each of these fields is at least that."""
    for name in names:
        value = getattr(values, name)
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {name}={value}: leave it out")


def _above_zero(values: Any, *names: str) -> None:
    for name in names:
        value = getattr(values, name)
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be above 0, got {name}={value}: leave it out")


def _divisors(number: int) -> str:
    return ", ".join(str(i) for i in range(1, number + 1) if number % i == 0)


@dataclass(frozen=True, kw_only=True)
class Files:
    """The text to train on."""

    text: str = _needed("directory of UTF-8 text files")
    pattern: str = _option("**/*", "which files below it; **/*: all but hidden ones")
    skip: tuple[str, ...] = _option((), "names of folders to leave out", type=str, nargs="+")
    held_out: float = _option(0.05, "share of the files to hold out, in (0, 1)")

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise ValueError(
                f"held_out must lie between 0 and 1, got held_out={self.held_out}: try 0.05"
            )


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The tokenizer that is trained on the text."""

    vocab_size: int = _option(4096, "ids of the tokenizer")

    def __post_init__(self) -> None:
        _at_least(self, 258, "vocab_size")  # all bytes, and two that begin and end a text


@dataclass(frozen=True, kw_only=True)
class Duration:
    """How long a run is; without either option it is one pass over the text."""

    steps: int | None = _option(None, "optimizer steps in all", type=int)
    minutes: float | None = _option(
        None, "minutes of training: as many steps as fit, 4 passes at the most", type=float
    )

    def __post_init__(self) -> None:
        if self.steps is not None:
            _at_least(self, 1, "steps")
        if self.minutes is not None:
            _above_zero(self, "minutes")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a Llama; the vocabulary comes from the tokenizer.

    The numbers of a head are embed / heads: an even number, for the rotation of pairs.
    """

    embed: int = _option(192, "width of the residual stream")
    depth: int = _option(4, "layers")
    heads: int = _option(
        0, f"query heads; 0: so many that a head has up to {HEAD} numbers of the width"
    )
    kv_heads: int = _option(1, "key and value heads")
    mlp: int = _option(512, "width of the feed-forward layer")

    def __post_init__(self) -> None:
        _at_least(self, 1, "embed", "depth", "kv_heads", "mlp")
        _at_least(self, 0, "heads")
        if self.embed % 2:
            raise ValueError(
                f"embed must be even, got embed={self.embed}: pass embed={self.embed + 1}"
            )
        if not self.heads:  # said as what it will be, in run.json too
            sizes = range(min(HEAD, self.embed), 0, -1)
            size = next(d for d in sizes if d % 2 == 0 and self.embed % d == 0)
            object.__setattr__(self, "heads", self.embed // size)
        if self.embed // 2 % self.heads:
            raise ValueError(
                f"heads must divide half of the width, got heads={self.heads}, embed={self.embed}: "
                f"pass one of {_divisors(self.embed // 2)}, or another width"
            )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads must divide the query heads, got kv_heads={self.kv_heads}, "
                f"heads={self.heads}: pass one of {_divisors(self.heads)}"
            )


@dataclass(frozen=True, kw_only=True)
class Batching:
    """The parts of a step that do not depend on the optimizer."""

    length: int = _option(256, "tokens in a row")
    global_batch: int = _option(4, "rows in a step, over all devices")
    accumulate: int = _option(1, "microbatches that a step is cut into")
    precision: Literal["float32", "bfloat16"] = _option(
        "float32", "dtype inside the loss; parameters stay float32", choices=_COMPUTE
    )
    remat: Literal["none", "attention", "all"] = _option(
        "none",
        "what of a layer the backward pass computes again: nothing, all but attention, or all",
        choices=("none", "attention", "all"),
    )
    ema: float = _option(
        0.0, "decay per step of averaged parameters, which are exported then; 0: no average"
    )
    guard_sigma: float = _option(
        6.0,
        "deviations above the median from which a step's loss or gradient norm is a spike and the "
        "step is skipped; 0: skip only steps that are not finite",
    )
    save_every: int = _option(0, "steps between checkpoints; 0: a tenth of the run")
    seed: int = _option(0, "of initial parameters and data order")

    def __post_init__(self) -> None:
        _at_least(self, 1, "length", "global_batch", "accumulate")
        _at_least(self, 0, "save_every", "seed")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must lie in [0, 1), got ema={self.ema}: try ema=0.999")
        if self.global_batch % self.accumulate:
            raise ValueError(
                f"accumulate must divide the rows of a step, got accumulate={self.accumulate}, "
                f"global_batch={self.global_batch}: pass one of {_divisors(self.global_batch)}"
            )

    def saves_every(self, steps: int) -> int:
        """Steps between the checkpoints of a run of `steps`."""
        return self.save_every or max(1, steps // 10)


@dataclass(frozen=True, kw_only=True)
class Training(Batching):
    """How a language model is trained from nothing, its number of steps apart."""

    learning_rate: float = _option(1e-2, "Adam's peak per step, for embeddings and norms")
    matrix_learning_rate: float = _option(0.02, "Muon's peak per step, for matrices")

    def __post_init__(self) -> None:
        super().__post_init__()
        _above_zero(self, "learning_rate", "matrix_learning_rate")


@dataclass(frozen=True, kw_only=True)
class Tuning(Batching):
    """How a language model is trained on, its number of steps apart.

    Adapters take ten times the rate of whole matrices, which is where runs of both agree best
    (Schulman et al. 2025, "LoRA Without Regret").
    """

    learning_rate: float = _option(
        0.0, "Adam's peak per step; 0: 2e-5, or 2e-4 where adapters alone are trained"
    )
    lora_rank: int = _option(
        0, "columns of the low-rank adapters, trained alone; 0: train every parameter"
    )
    lora_alpha: float = _option(32.0, "adapters are scaled by this over the rank")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lora_rank < 0 or self.learning_rate < 0:
            raise ValueError(
                f"lora_rank and learning_rate must be at least 0, got lora_rank={self.lora_rank}, "
                f"learning_rate={self.learning_rate}: leave them out for the defaults"
            )
        if not self.learning_rate:  # said as what it will be, in run.json too
            object.__setattr__(self, "learning_rate", 2e-4 if self.lora_rank else 2e-5)


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """Texts and traces that are written while a model is trained, beside the metrics."""

    samples: int = _option(
        0, "steps between texts that the model writes, to RUN/samples.jsonl; 0: none"
    )
    prompt: str = _option("The", "what those texts begin with")
    trace: int = _option(
        0, "step from which 5 steps are traced by jax.profiler, to RUN/trace; 0: none"
    )

    def __post_init__(self) -> None:
        _at_least(self, 0, "samples", "trace")


@dataclass(frozen=True, kw_only=True)
class Source:
    """The model that is trained on."""

    model: str = _needed("Hugging Face directory with a tokenizer, or a finished run")


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """Of whom, and how closely, a student learns."""

    teacher: str = _needed("Hugging Face directory with a tokenizer, or a finished run")
    alpha: float = _option(
        0.5, "share of the teacher in the loss, the text has the rest; in [0, 1]"
    )
    temperature: float = _option(2.0, "by which both models' logits are divided; above 0")
    teacher_precision: Literal["float32", "bfloat16"] = _option(
        "float32", "dtype of the teacher's parameters", choices=_COMPUTE
    )

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1 or not self.temperature > 0:
            raise ValueError(
                f"alpha must lie in [0, 1] and temperature above 0, got alpha={self.alpha}, "
                f"temperature={self.temperature}: try alpha=0.5, temperature=2"
            )

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rematerialization to a byte budget: the least that fits, found by compiling."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import Any

from flax import nnx

from dovetail_train.loop.trainer import Trainer
from dovetail_train.step.program import Program
from dovetail_train.step.terms import Batch

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tried:
    """A candidate of `fit_remat`.

    Attributes:
        candidate: Value of `model.configure(remat=)`.
        recomputed: FLOPs computed again in a step.
        peak_bytes: Peak memory of a device; None if a cheaper candidate fitted first.
    """

    candidate: Any
    recomputed: int
    peak_bytes: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitted:
    """Result of `fit_remat`.

    Attributes:
        model: The configured model.
        remat: Its value of `model.configure(remat=)`; False for none.
        tried: All candidates, cheapest first.
    """

    model: nnx.Module
    remat: Any
    tried: tuple[Tried, ...]

    def __str__(self) -> str:
        lines = [f"{'remat':<40}{'recomputed GFLOP':>18}{'peak MiB':>12}"]
        for candidate in self.tried:
            peak = "-" if candidate.peak_bytes is None else f"{candidate.peak_bytes / 2**20:,.1f}"
            mark = "  *" if candidate.candidate == self.remat else ""
            lines.append(
                f"{candidate.candidate!s:<40}{candidate.recomputed / 1e9:>18,.3f}{peak:>12}{mark}"
            )
        return "\n".join(lines)


def fit_remat(
    trainer: Trainer,
    model: Any,
    batch: Batch,
    *,
    candidates: Sequence[Any],
    max_bytes: int,
) -> Fitted:
    """Returns the model with the least recomputation that fits `max_bytes` on a device.

    The step is compiled for the trainer's devices, with its optimizer, microbatches and shardings,
    from the least recomputation on until one fits. Peak bytes are XLA's: arguments, results that
    are not donated arguments, and temporaries.

    Args:
        trainer: The trainer.
        model: A model with `configure(remat=)`.
        batch: A batch of arrays or `jax.ShapeDtypeStruct`.
        candidates: Values of `model.configure(remat=...)`, such as False and
            `dovetail_models.Remat(save=())`, in any order.
        max_bytes: Budget of a device.

    Raises:
        ValueError: No candidate fits; the message has the bytes of each.
    """
    if not candidates or max_bytes < 1:
        raise ValueError(
            f"candidates must not be empty and max_bytes at least 1, got candidates="
            f"{list(candidates)}, max_bytes={max_bytes}; write for example candidates=[False, "
            f"Remat()], max_bytes=8 * 2**30"
        )
    options = []
    for candidate in candidates:
        program = trainer.program(model.configure(remat=candidate), batch)
        options.append((program.flops().recomputed, candidate, program))
    options.sort(key=lambda option: option[0])
    tried, fitting = [], None
    for recomputed, candidate, program in options:
        peak = None if fitting is not None else _peak_bytes(program)
        tried.append(Tried(candidate=candidate, recomputed=recomputed, peak_bytes=peak))
        if peak is not None:
            _log.info("remat=%s needs %d bytes", candidate, peak)
        if peak is not None and peak <= max_bytes:
            fitting = (candidate,)
    if fitting is None:
        needs = ", ".join(f"{candidate.candidate}: {candidate.peak_bytes:,}" for candidate in tried)
        raise ValueError(
            f"a candidate must fit max_bytes={max_bytes:,} on a device, got {needs}; use more "
            f"microbatches (Trainer(accumulate=)), more devices, or a candidate that keeps less"
        )
    return Fitted(model=model.configure(remat=fitting[0]), remat=fitting[0], tried=tuple(tried))


def _peak_bytes(program: Program) -> int:
    memory = program.compile().memory_analysis()
    kept = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return memory.argument_size_in_bytes + kept + memory.temp_size_in_bytes

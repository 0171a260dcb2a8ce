# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Recomputation to a byte budget: the least that fits, found by compiling, not by guessing."""

import dataclasses
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flax import nnx

if TYPE_CHECKING:
    from dovetail_train.program import Program
    from dovetail_train.step import Batch
    from dovetail_train.trainer import Trainer

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tried:
    """A candidate: FLOPs that it computes again in a step, and the bytes that a device then needs
    at its peak (None if a cheaper candidate fitted and this was not compiled)."""

    candidate: Any
    recomputed: int
    peak_bytes: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitted:
    """The model with the candidate that was chosen, and every one that was tried, cheapest first.

    chosen: the value of `model.configure(remat=)`; False for none.
    """

    model: nnx.Module
    chosen: Any
    tried: tuple[Tried, ...]

    def __str__(self) -> str:
        lines = [f"{'remat':<40}{'recomputed GFLOP':>18}{'peak MiB':>12}"]
        for one in self.tried:
            peak = "-" if one.peak_bytes is None else f"{one.peak_bytes / 2**20:,.1f}"
            mark = "  *" if one.candidate == self.chosen else ""
            lines.append(f"{one.candidate!s:<40}{one.recomputed / 1e9:>18,.3f}{peak:>12}{mark}")
        return "\n".join(lines)


def fit_remat(
    trainer: "Trainer",
    model: Any,
    batch: "Batch",
    *,
    candidates: Sequence[Any],
    max_bytes: int,
) -> Fitted:
    """The model whose step recomputes least of those that fit `max_bytes` on a device.

    candidates: values of `model.configure(remat=...)`, such as False and
    `dovetail_models.Remat(save=())`, in any order. The step is compiled for the trainer's devices,
    with its optimizer, microbatches and shardings, from the candidate that recomputes least on
    until one fits. peak_bytes is XLA's: arguments, results that are no donated argument, and
    temporaries. Raises ValueError with every candidate's bytes when none fits.

        fitted = fit_remat(trainer, model, batch, candidates=[False, Remat()], max_bytes=8 * 2**30)
        trainer.fit(fitted.model, data, steps=1000)
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
    tried, chosen = [], None
    for recomputed, candidate, program in options:
        peak = None if chosen is not None else _peak_bytes(program)
        tried.append(Tried(candidate=candidate, recomputed=recomputed, peak_bytes=peak))
        if peak is not None:
            _log.info("remat=%s needs %d bytes", candidate, peak)
        if peak is not None and peak <= max_bytes:
            chosen = (candidate,)
    if chosen is None:
        needs = ", ".join(f"{one.candidate}: {one.peak_bytes:,}" for one in tried)
        raise ValueError(
            f"a candidate must fit max_bytes={max_bytes:,} on a device, got {needs}; use more "
            f"microbatches (Trainer(accumulate=)), more devices, or a candidate that keeps less"
        )
    return Fitted(model=model.configure(remat=chosen[0]), chosen=chosen[0], tried=tuple(tried))


def _peak_bytes(program: "Program") -> int:
    found = program.compile().memory_analysis()
    kept = found.output_size_in_bytes - found.alias_size_in_bytes
    return found.argument_size_in_bytes + kept + found.temp_size_in_bytes

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rewinding of a run to an earlier checkpoint, without the batches of a loss spike.

`run.json` first takes the steps to leave out together with the pending rewind, in one atomic write.
Then the later checkpoints are set aside, and the rewind is no longer pending. A launch that is
killed in between is completed by the next one, so no launch trains on half of a request.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail_checkpoint import Store, rewind
from dovetail_stack.processes import on_first, say
from dovetail_stack.recipes.options import CHECKPOINTS
from dovetail_stack.settings import Rewind, S, Settings, load


def steps_of(text: str) -> tuple[int, int]:
    """Parses A:B, the steps A to B - 1. Raises ValueError for anything else."""
    first, _, end = text.partition(":")
    if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise ValueError(
            f"steps to leave out must be A:B with A < B, the steps A to B - 1, got {text!r}: "
            "type for example 120:124"
        )
    return int(first), int(end)


def requested(stored: S, values: dict[str, Any], saved: list[int]) -> S:
    """Returns the stored settings with the request of --rewind and --leave-out, checked.

    Args:
        stored: Settings of the run.
        values: Parsed options by name.
        saved: Steps with a checkpoint, oldest first.

    Raises:
        ValueError: No checkpoint is early enough, or the run has no such steps.
    """
    if "rewind" not in values and "leave_out" not in values:
        return stored
    spans = tuple(steps_of(text) for text in values.get("leave_out", ()))
    step = values.get("rewind")
    if stored.rewind is not None:
        if (step, spans) != (stored.rewind.asked, stored.rewind.leave_out):
            raise ValueError(
                f"a rewind that was interrupted must be completed first, got another one while "
                f"{_typed(stored.rewind)} is pending: type that again, or dovetail train --out RUN"
            )
        return stored
    begin = _checkpoint(step, saved)
    for first, end in spans:
        if first < begin:
            raise ValueError(
                f"steps to leave out must come after the checkpoint that the run goes on from, got "
                f"--leave-out {first}:{end} and the checkpoint of step {begin}: pass --rewind "
                f"{first}, or a smaller one; checkpoints: {_listed(saved)}"
            )
        if stored.duration.steps is not None and end > stored.duration.steps:
            raise ValueError(
                f"steps to leave out must be among the run's {stored.duration.steps}, got "
                f"--leave-out {first}:{end}: pass smaller ones"
            )
    pending = Rewind(asked=step, to=begin, leave_out=spans)
    return dataclasses.replace(stored, rewind=pending, leave_out=stored.leave_out + spans)


def completed(run: S, out: Path) -> S:
    """Carries out the pending rewind and returns the settings after it. Every process calls it."""
    assert run.rewind is not None
    on_first(lambda: run.save(out))
    aside = rewind(out / CHECKPOINTS, run.rewind.to) if checkpoints(out) else []
    done = dataclasses.replace(run, rewind=None)
    on_first(lambda: done.save(out))
    left = f", without steps {_text(run.rewind.leave_out)}" if run.rewind.leave_out else ""
    names = ", ".join(path.name for path in aside)
    deletable = f" Set aside, delete them at will: {names}." if aside else ""
    say(f"The run goes on from step {run.rewind.to}{left}.{deletable}")
    return done


def changes(run: Settings, out: Path) -> dict[str, list[Any]]:
    """Returns what the pending rewind adds to a launch's record: {name: [before, after]}."""
    assert run.rewind is not None
    made: dict[str, list[Any]] = {"step": [max(checkpoints(out), default=0), run.rewind.to]}
    before = load(out)
    if run.leave_out != before.leave_out:
        made["leave_out"] = [_text(before.leave_out), _text(run.leave_out)]
    return made


def checkpoints(out: Path) -> list[int]:
    """Returns the steps of a run with a checkpoint, oldest first."""
    return [saved.step for saved in Store(out / CHECKPOINTS).steps()]


def advice(skipped: Sequence[int], saved: Sequence[int], *, steps: int) -> str:
    """Returns what to type after a run has ended because it skipped steps.

    Args:
        skipped: The steps, in rising order.
        saved: Steps with a checkpoint.
        steps: Steps of the run.
    """
    is_last = skipped[-1] == steps - 1
    more = f"--steps {steps + 1} or more" if is_last else "a lower --learning-rate"
    if saved and min(saved) > skipped[0]:
        return f"look at the batches of these steps, and type {more}"
    spans: list[str] = []
    first, left = skipped[0], 0
    for step, following in zip(skipped, [*skipped[1:], None], strict=True):
        if following != step + 1:
            # Each span is numbered as in the run without those before it.
            spans.append(f"{first - left}:{step + 1 - left}")
            left, first = left + step + 1 - first, following if following is not None else step
    back = f"--rewind {skipped[0]} " if saved else ""
    return f"type {back}--leave-out {' '.join(spans)} to go on without their batches, or {more}"


def _checkpoint(step: int | None, saved: list[int]) -> int:
    """Returns the step of the checkpoint to go on from."""
    if step is None:
        return max(saved, default=0)
    if step < 0:
        raise ValueError(f"--rewind must be a step from 0 on, got {step}: pass {_listed(saved)}")
    earlier = [number for number in saved if number <= step]
    if not earlier:
        raise ValueError(
            f"a run goes back to a checkpoint at or before --rewind, got step {step}: pass one of "
            f"{_listed(saved)}"
        )
    return earlier[-1]


def _typed(request: Rewind) -> str:
    options = [] if request.asked is None else [f"--rewind {request.asked}"]
    if request.leave_out:
        options.append(f"--leave-out {_text(request.leave_out, between=' ')}")
    return " ".join(options)


def _text(spans: Sequence[tuple[int, int]], *, between: str = ", ") -> str:
    return between.join(f"{first}:{end}" for first, end in spans)


def _listed(saved: list[int]) -> str:
    return ", ".join(map(str, saved)) or "none, since nothing was saved"

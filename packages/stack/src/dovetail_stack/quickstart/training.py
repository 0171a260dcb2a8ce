# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The quickstart's training: killed half-way without warning, resumed, and compared.

Training runs in processes of their own, by the command that users run, because that is what is
shown. The first is killed once it is some steps past its middle checkpoint; the second repeats
those steps. Both log them, so their losses can be compared bit by bit.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail_stack import settings
from dovetail_stack.recipes.fitting import METRICS

REPEATED_STEPS = 8  # logged past the middle checkpoint before the kill
POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Text:
    """The corpus: a directory, which files below it, which folders not."""

    directory: Path
    pattern: str
    skip: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Steps that both processes logged, and how many of them had bit-equal losses."""

    killed_after: int
    resumed_from: int
    repeated: int
    equal: int

    @property
    def bit_exact(self) -> bool:
        return self.repeated > 0 and self.equal == self.repeated

    def __str__(self) -> str:
        return (
            f"The first process was killed (SIGKILL) after it had logged step {self.killed_after}; "
            f"a second one resumed from the checkpoint of step {self.resumed_from}. The "
            f"{self.repeated} steps that both ran gave bit-identical losses in {self.equal} cases."
        )


def train(text: Text, out: Path, *, minutes: float) -> Resume:
    """Runs `dovetail train`, kills it past its middle checkpoint, and runs it again to the end.

    A run that `out` already holds is only brought to its end, not killed again.

    Raises:
      RuntimeError: a training process failed; its own message is on the terminal.
    """
    command = [
        *(sys.executable, "-m", "dovetail_stack", "train", "pretrain", "--out", str(out), "--text"),
        *(str(text.directory), "--pattern", text.pattern, "--minutes", str(minutes)),
        *(["--skip", *text.skip] if text.skip else []),
    ]
    fresh = not (out / METRICS).exists()
    if fresh:
        with subprocess.Popen(command, stdout=sys.stderr) as process:
            _kill_past_the_middle(process, out)
    code = subprocess.run(command, check=False, stdout=sys.stderr).returncode
    if code:
        raise RuntimeError(f"training must end well, but its process returned {code}: see above")
    return compare_generations(out / METRICS)


def _kill_past_the_middle(process: subprocess.Popen[bytes], out: Path) -> None:
    """Waits until REPEATED_STEPS steps past the middle one are logged, then sends SIGKILL."""
    try:
        while process.poll() is None:
            done = _last_step(out / METRICS)
            if done is not None and done >= _killing_step(out):
                process.send_signal(signal.SIGKILL)
                process.wait()
                print("\nKilled on purpose (SIGKILL). Resuming in a new process.", flush=True)
                return
            time.sleep(POLL_S)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if process.returncode:
        raise RuntimeError(
            f"training must end well, but its process returned {process.returncode}: see above"
        )


def _killing_step(out: Path) -> int:
    """REPEATED_STEPS past the last step before half of the run that is saved.

    Fewer in a run so short that it would be over by then.
    """
    run = settings.load(out)
    steps = run.duration.steps or 0  # planned before the first step is logged
    every = run.training.saves_every(steps)
    middle = steps // 2 // every * every
    return middle + min(REPEATED_STEPS, (steps - middle) // 3)


def _lines(metrics: Path) -> Iterator[dict[str, Any]]:
    """Whole lines of the log that hold a training loss; the last one may still be being written."""
    if metrics.exists():
        for line in metrics.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                values = json.loads(line)
                if "loss" in values:
                    yield values


def _last_step(metrics: Path) -> int | None:
    return max((line["step"] for line in _lines(metrics)), default=None)


def compare_generations(metrics: Path) -> Resume:
    """Compares the losses of the steps that the first and the second process both logged."""
    losses: dict[int, dict[int, float]] = {}
    for line in _lines(metrics):
        losses.setdefault(line["generation"], {})[line["step"]] = line["loss"]
    first, second = losses[min(losses)], losses[max(losses)]
    both = first.keys() & second.keys() if len(losses) > 1 else set()
    return Resume(
        killed_after=max(first),
        resumed_from=min(second),
        repeated=len(both),
        equal=sum(first[step] == second[step] for step in both),
    )

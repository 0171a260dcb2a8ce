# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The quickstart's training: killed half-way without warning, resumed, and compared.

Training runs in processes of their own, by the command `dovetail train`. The first process is
killed some steps past its middle checkpoint. The second repeats these steps. Both log their losses,
so these can be compared bit by bit.
"""

import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dovetail_runs import read_metrics
from dovetail_stack import settings
from dovetail_stack.recipes.options import METRICS, Duration, Files

REPEATED_STEPS = 8  # logged past the middle checkpoint before the kill
POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Comparison of the steps logged by both processes.

    Attributes:
        killed_after: Last step of the first process.
        resumed_from: First step of the second process.
        repeated: Number of steps logged by both.
        equal: Number of those with bit-equal losses.
    """

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


def train(files: Files, out: Path, *, duration: Duration) -> Resume:
    """Runs `dovetail train`, kills it past its middle checkpoint, and runs it again to the end.

    If `out` already holds a run, it is only finished, not killed again.

    Args:
        files: The text.
        out: Directory of the run.
        duration: Length of the run.

    Raises:
        RuntimeError: A training process failed; its own message is on the terminal.
    """
    command = [
        *(sys.executable, "-m", "dovetail_stack", "train", "pretrain", "--out", str(out)),
        *("--text", files.text, "--pattern", files.pattern),
        *(["--steps", str(duration.steps)] if duration.steps is not None else []),
        *(["--minutes", str(duration.minutes)] if duration.minutes is not None else []),
        *(["--skip", *files.skip] if files.skip else []),
    ]
    if not (out / METRICS).exists():
        with subprocess.Popen(command, stdout=sys.stderr) as process:
            if not _killed_past_the_middle(process, out):
                _check(process.returncode)
    _check(subprocess.run(command, check=False, stdout=sys.stderr).returncode)
    return compare_generations(out / METRICS)


def _check(code: int) -> None:
    if code:
        raise RuntimeError(
            f"training must end well, but its process returned {code}: mend its error"
        )


def _killed_past_the_middle(process: subprocess.Popen[bytes], out: Path) -> bool:
    """Kills the process REPEATED_STEPS logged steps past the middle; False if it ended before."""
    try:
        while process.poll() is None:
            last = read_metrics(out / METRICS).curve("loss").last()
            if last is not None and last[0] >= _killing_step(out):
                process.send_signal(signal.SIGKILL)
                process.wait()
                print("\nKilled on purpose (SIGKILL). Resuming in a new process.", flush=True)
                return True
            time.sleep(POLL_S)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return False


def _killing_step(out: Path) -> int:
    """Returns the step REPEATED_STEPS past the last checkpoint before half of the run.

    Fewer steps past it in a very short run.
    """
    run = settings.load(out)
    steps = run.duration.steps or 0  # planned before the first step is logged
    every = run.training.saves_every(steps)
    middle = steps // 2 // every * every
    return middle + min(REPEATED_STEPS, (steps - middle) // 3)


def compare_generations(metrics: Path) -> Resume:
    """Compares the losses of the steps logged by both processes."""
    lines = read_metrics(metrics).lines
    numbers, values = lines.columns["loss"]
    losses: dict[int, dict[int, float]] = {}
    for i, loss in zip(numbers.tolist(), values.tolist(), strict=True):
        losses.setdefault(int(lines.generations[i]), {})[int(lines.steps[i])] = loss
    first, second = losses[min(losses)], losses[max(losses)]
    both = first.keys() & second.keys() if len(losses) > 1 else set()
    return Resume(
        killed_after=max(first),
        resumed_from=min(second),
        repeated=len(both),
        equal=sum(repr(first[step]) == repr(second[step]) for step in both),  # NaN too
    )

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The profile of a training run: a trace of some steps, and a page about it."""

from pathlib import Path

from dovetail_stack.processes import say
from dovetail_train import Trace

TRACE, PAGE = "trace", "profile.html"  # in the directory of a run


def trace(out: Path, first: int, steps: int) -> Trace:
    """Returns the hook that traces some steps of a run, on every process.

    Args:
        out: Directory of the run.
        first: The first step, rounded up to a multiple of `steps`.
        steps: Number of steps.
    """
    return Trace(out / TRACE, start=first, steps=steps, processes="all")


def write_page(out: Path) -> None:
    """Writes the page about the newest trace of a run.

    It says why if there is none: a page must not fail a run that has trained.
    """
    if not any((out / TRACE).rglob("*.xplane.pb")):
        say("No step was traced: the run has ended before the first step of --profile.")
        return
    try:
        from dovetail_profile import read

        read(out / TRACE).save(out / PAGE)
    except (ImportError, ValueError) as error:
        say(f"The trace is kept in {out / TRACE}, without a page: {error}")
        return
    say(f"Where the time went: {out / PAGE}; type dovetail profile {out}")

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The profile of a training run: a trace of some steps, and a page about it."""

from pathlib import Path

from dovetail_stack.processes import say
from dovetail_train import Trace
from dovetail_train.mesh.processes import first

TRACE, PAGE = "trace", "profile.html"  # in the directory of a run


def hooks(out: Path, begin: int, steps: int) -> list[Trace]:
    """Returns the hook that traces some steps of a run, on every process, or none.

    A run that is resumed after them traces as many later ones, unless it has their trace.

    Args:
        out: Directory of the run.
        begin: The first step, rounded up to a multiple of `steps`.
        steps: Number of steps.
    """
    names = [folder.name for folder in (out / TRACE / "plugins" / "profile").glob("step*")]
    later = any(int(name.removeprefix("step")) >= begin for name in names)
    if first(later):  # without a shared disk only some processes may have it
        return []
    return [Trace(out / TRACE, start=begin, steps=steps, processes="all")]


def write_page(out: Path) -> None:
    """Writes the page about the newest trace of a run.

    It says why if there is none: a page must not fail a run that has trained. The trace of this
    process gets the programs that came from a compilation cache, which JAX leaves out.
    """
    files = sorted((out / TRACE).rglob("process0.xplane.pb"), key=lambda file: file.stat().st_mtime)
    if not files:
        say("No step was traced: the run has ended before the first step of --profile.")
        return
    try:
        from dovetail_profile import read
        from dovetail_profile.live_programs import add_live_programs
        from dovetail_profile.trace.files import load

        add_live_programs(files[-1], load(files[-1]))
        read(out / TRACE).save(out / PAGE)
    except (ImportError, ValueError) as error:
        say(f"The trace is kept in {out / TRACE}, without a page: {error}")
        return
    say(f"Where the time went: {out / PAGE}; type dovetail profile {out}")

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Compilations of a process, as JAX reported them, and the file that keeps them beside a trace."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from dovetail_profile.wire import Damaged

_SUFFIX = ".compiles.json"


@dataclasses.dataclass
class Compilation:
    """One way of a function from Python to a program. A stage that did not happen is None.

    Attributes:
        function: Name of the function.
        start_s: Begin of the first stage, in seconds after the epoch.
        trace_s: Seconds of tracing.
        lower_s: Seconds of lowering to StableHLO.
        compile_s: Seconds of compilation, or of what replaced it.
        retrieval_s: Seconds of reading the program from the persistent cache.
        reason: Difference to the calls before, in JAX's words.
        caller: File, line and function of the call.
    """

    function: str
    start_s: float
    trace_s: float | None = None
    lower_s: float | None = None
    compile_s: float | None = None
    retrieval_s: float | None = None
    reason: str = ""
    caller: str = ""


def save_compilations(trace: Path, compilations: Sequence[Compilation]) -> None:
    """Writes the compilations of a capture beside its trace file."""
    rows = [dataclasses.asdict(each) for each in compilations]
    _beside(trace).write_text(json.dumps({"compilations": rows}, indent=1), encoding="utf-8")


def load_compilations(trace: Path) -> tuple[Compilation, ...] | None:
    """Returns the compilations that were kept beside a trace file; None if there are none.

    Raises:
        Damaged: The file beside the trace is not as `save_compilations` writes it.
    """
    path = _beside(trace)
    if not path.is_file():
        return None
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["compilations"]
        return tuple(Compilation(**row) for row in rows)
    except (ValueError, KeyError, TypeError) as error:
        text = f"{str(path)!r} must hold compilations as JSON, got {error}: delete it"
        raise Damaged(text) from None


def _beside(trace: Path) -> Path:
    return trace.with_name(trace.name.removesuffix(".xplane.pb") + _SUFFIX)

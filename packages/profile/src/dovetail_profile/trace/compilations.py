# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Compilations of a process, and their file beside a trace."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from dovetail_profile.wire import Damaged

_SUFFIX = ".compiles.json"


@dataclasses.dataclass
class Compilation:
    """The compilation of a function. A skipped stage is None.

    Attributes:
        function: Name of the function.
        start_s: Start of the first stage, in seconds after the epoch.
        trace_s: Seconds of tracing.
        lower_s: Seconds of lowering to StableHLO.
        compile_s: Seconds of compilation, or of its replacement.
        retrieval_s: Seconds of reading from the persistent cache.
        reason: Difference to earlier calls, in JAX's words.
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
    """Returns the compilations beside a trace file; None without such a file.

    Raises:
        Damaged: The file has another format than that of `save_compilations`.
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

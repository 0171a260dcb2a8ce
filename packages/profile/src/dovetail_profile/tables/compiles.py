# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The compile log: functions with the time of each stage and the reason of a repetition."""

import dataclasses
import re
from collections.abc import Iterable

import numpy as np

from dovetail_profile.table import Table
from dovetail_profile.tables.work import scaled
from dovetail_profile.trace.recording import Recording
from dovetail_profile.trace.selection import start_ps
from dovetail_profile.trace.spans import Spans

# Annotations of JAX, on all platforms and versions; and those of XLA's clients without JAX.
_LOWER = ("lower_sharding_computation",)
_COMPILE = ("backend_compile_and_load", "backend_compile")
_CLIENT = ("PjRtCpuClient::Compile", "CompileCpuExecutable", "PjRtStreamExecutorClient::Compile")
_RETRIEVE = ("CommonPjRtClient::DeserializeExecutable",)
_CALL = re.compile(r"PjitFunction\((.*)\)")
_PASS = re.compile(r".* \((\w+)\)")  # "HLO passes after layout assignment (jit_f)"

_FROM_TRACE = "Without the log of a capture there are no times of tracing and no reasons."

_Stage = tuple[int, int, str]  # start and length in picoseconds, and its name


@dataclasses.dataclass(frozen=True)
class CompileRow:
    """A compilation of a function. None: the stage did not happen, or is unknown.

    Attributes:
        function: The function; from a trace alone it may be the program: "jit_f".
        host: The host.
        start_us: Begin, after the start of the trace.
        trace_us: Time of tracing Python.
        lower_us: Time of lowering to StableHLO.
        compile_us: Time of XLA, or of its replacement.
        retrieval_us: Time of reading it from the persistent cache.
        reason: Difference to the calls before, as JAX explains it; empty if it did not.
        caller: File, line and function of the call.
    """

    function: str
    host: str
    start_us: float
    trace_us: float | None
    lower_us: float | None
    compile_us: float | None
    retrieval_us: float | None
    reason: str = ""
    caller: str = ""


def compiles(recording: Recording) -> Table[CompileRow]:
    """Returns the compilations of all hosts in the order of time.

    A capture has a log of JAX's own. Otherwise they come from annotations on the threads, without
    times of tracing and reasons.
    """
    rows: list[CompileRow] = []
    notes: tuple[str, ...] = ()
    for host, name in enumerate(recording.hosts):
        if host not in recording.compilations:
            rows += _of_spans(recording.spans, host, name)
            notes = (_FROM_TRACE,)
            continue
        for each in recording.compilations[host]:
            rows.append(
                CompileRow(
                    function=each.function,
                    host=name,
                    start_us=start_ps(recording, host, each.start_s) / 1e6,
                    trace_us=scaled(each.trace_s, 1e6),
                    lower_us=scaled(each.lower_s, 1e6),
                    compile_us=scaled(each.compile_s, 1e6),
                    retrieval_us=scaled(each.retrieval_s, 1e6),
                    reason=each.reason,
                    caller=each.caller,
                )
            )
    return Table(CompileRow, tuple(sorted(rows, key=lambda row: row.start_us)), notes)


def _of_spans(spans: Spans, host: int, name: str) -> list[CompileRow]:
    """Returns the compilations among the annotations of a host, thread by thread."""
    spans = spans.select(spans.host == host)
    client = _COMPILE if spans.named(*_COMPILE).any() else _CLIENT
    masks = {
        "lower": spans.named(*_LOWER),
        "compile": spans.named(*client),
        "retrieval": spans.named(*_RETRIEVE),
    }
    rows = []
    for lane in np.unique(spans.lane[np.logical_or.reduce(list(masks.values()))]).tolist():
        thread = spans.lane == lane
        stages = [
            (int(spans.start_ps[i]), int(spans.duration_ps[i]), stage)
            for stage, mask in masks.items()
            for i in np.flatnonzero(mask & thread)
        ]
        for group in _compilations(sorted(stages)):
            names = (_function(spans, thread, start, start + size) for start, size, _ in group)
            us = {stage: size / 1e6 for _, size, stage in group}
            rows.append(
                CompileRow(
                    function=next(filter(None, names), ""),
                    host=name,
                    start_us=group[0][0] / 1e6,
                    trace_us=None,
                    lower_us=us.get("lower"),
                    compile_us=us.get("compile"),
                    retrieval_us=us.get("retrieval"),
                )
            )
    return rows


def _compilations(stages: Iterable[_Stage]) -> list[list[_Stage]]:
    """Returns the stages of each compilation: a lowering, and the rest before the next one."""
    groups: list[list[_Stage]] = []
    for stage in stages:
        if not groups or stage[2] == "lower" or groups[-1][-1][2] != "lower":
            groups.append([])
        groups[-1].append(stage)
    return groups


def _function(spans: Spans, thread: np.ndarray, start: int, stop: int) -> str:
    """Returns the function called around a span, or the program of compiler passes within it."""
    stops = spans.start_ps + spans.duration_ps
    around = thread & (spans.start_ps <= start) & (stops >= stop)
    within = (spans.start_ps >= start) & (stops <= stop)
    for mask, pattern in ((around, _CALL), (within, _PASS)):
        for code in dict.fromkeys(spans.code[mask].tolist()):
            if match := pattern.fullmatch(spans.names[code]):
                return match[1]
    return ""

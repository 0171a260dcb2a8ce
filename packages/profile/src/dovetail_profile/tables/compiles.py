# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The compile log: functions that were traced, lowered and compiled, how long, and why again."""

import dataclasses
import re
from collections.abc import Iterable

import numpy as np

from dovetail_profile.table import Table
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
    """One way of a function to a program. A stage that did not happen, or is unknown, is None.

    Attributes:
        function: The function; from a trace alone it may be the program: "jit_f".
        host: The host.
        start_us: Begin, after the start of the trace.
        trace_us: Time of tracing Python.
        lower_us: Time of lowering to StableHLO.
        compile_us: Time of XLA, or of what replaced it.
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
    reason: str
    caller: str


def compiles(recording: Recording) -> Table[CompileRow]:
    """Returns the compilations of all hosts in the order of time.

    A capture knows them from JAX itself. Of a trace without its log, annotations on the threads
    give less: no times of tracing and no reasons.
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
                    trace_us=_us(each.trace_s),
                    lower_us=_us(each.lower_s),
                    compile_us=_us(each.compile_s),
                    retrieval_us=_us(each.retrieval_s),
                    reason=each.reason,
                    caller=each.caller,
                )
            )
    return Table(CompileRow, tuple(sorted(rows, key=lambda row: row.start_us)), notes)


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


def _of_spans(spans: Spans, host: int, name: str) -> list[CompileRow]:
    """Returns the compilations that annotations of a host show, thread by thread."""
    spans = spans.select(spans.host == host)
    client = _COMPILE if spans.named(*_COMPILE).any() else _CLIENT
    masks = {"lower": spans.named(*_LOWER), "compile": spans.named(*client)}
    masks["retrieval"] = spans.named(*_RETRIEVE)
    rows = []
    for lane in np.unique(spans.lane[np.logical_or.reduce(list(masks.values()))]).tolist():
        thread = spans.lane == lane
        stages = [
            (int(spans.start_ps[i]), int(spans.duration_ps[i]), stage)
            for stage, mask in masks.items()
            for i in np.flatnonzero(mask & thread)
        ]
        for group in _grouped(sorted(stages)):
            names = (_function(spans, thread, start, start + size) for start, size, _ in group)
            us = {stage: size / 1e6 for _, size, stage in group}
            function = next(filter(None, names), "")
            start = group[0][0] / 1e6
            rows.append(
                CompileRow(
                    function,
                    name,
                    start,
                    None,
                    us.get("lower"),
                    us.get("compile"),
                    us.get("retrieval"),
                    "",
                    "",
                )
            )
    return rows


def _grouped(stages: Iterable[_Stage]) -> list[list[_Stage]]:
    """Returns the stages of each compilation: a lowering, and what comes before the next one."""
    groups: list[list[_Stage]] = []
    for stage in stages:
        if not groups or stage[2] == "lower" or groups[-1][-1][2] != "lower":
            groups.append([])
        groups[-1].append(stage)
    return groups


def _function(spans: Spans, thread: np.ndarray, start: int, stop: int) -> str:
    """Returns the function whose call a span is within, or the program that passes run on in it."""
    stops = spans.start_ps + spans.duration_ps
    around = thread & (spans.start_ps <= start) & (stops >= stop)
    within = (spans.start_ps >= start) & (stops <= stop)
    for mask, pattern in ((around, _CALL), (within, _PASS)):
        for code in dict.fromkeys(spans.code[mask].tolist()):
            if match := pattern.fullmatch(spans.names[code]):
                return match[1]
    return ""

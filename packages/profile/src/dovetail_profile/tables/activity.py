# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The kinds of annotations of a host: dispatch, compilation, or the traced program's own.

Only names tell them apart. JAX and XLA have few names outside calls of programs; everything inside
such a call is theirs.
"""

import re

import numpy as np

from dovetail_profile.tables.intervals import intervals
from dovetail_profile.trace.operations import union_ps
from dovetail_profile.trace.spans import Spans

_COMPILE = re.compile(
    "backend_compile_and_load|lower_sharding_computation|trace_to_jaxpr_(dynamic|nounits)"
)
_CALL = re.compile(
    r"PjitFunction\(.*|PmapFunction\(.*|ExecuteReplicated\.__call__|shard_args|DevicePut.*"
)
# Names of XLA have colons or spaces; those of the tracer of Python begin with a dollar.
_OTHER = re.compile(
    r"\$.*|.*::.*|end: .*|Wait for .*|Handle input.*|ParseArguments|CompileCpuExecutable|"
    r"AllocateOutputBuffers.*|ArrayImpl\..*|np\.asarray\(jax\.Array\)|pickle_util\..*|"
    r"[Bb]atched_?[Cc]opy.*"
)


def calls(spans: Spans) -> np.ndarray:
    """Returns a mask of calls sending work or data to devices: bool [spans]."""
    return _matching(spans, _CALL)


def compiles(spans: Spans) -> np.ndarray:
    """Returns a mask of compilations, and of calls with one inside: bool [spans]."""
    compiled, called = _matching(spans, _COMPILE), calls(spans)
    holds = np.zeros(len(spans), bool)
    for lane in np.unique(spans.lane[compiled]):
        starts = np.sort(spans.start_ps[compiled & (spans.lane == lane)])
        at = np.flatnonzero(called & (spans.lane == lane))
        start, stop = intervals(spans, at)
        holds[at] = np.searchsorted(starts, start) < np.searchsorted(starts, stop)
    return compiled | holds


def of_user(spans: Spans) -> np.ndarray:
    """Returns a mask of annotations of the traced program and its libraries: bool [spans].

    These are outside calls of compiled functions and threads of XLA, under a name unknown to JAX,
    XLA and the tracer of Python.
    """
    pools = [i for i, name in enumerate(spans.lanes) if name.startswith("tf_")]
    inner = compiles(spans) | calls(spans)
    known = inner | _matching(spans, _OTHER) | np.isin(spans.lane, pools)
    for lane in np.unique(spans.lane[~known]):
        starts, stops = union_ps(*intervals(spans, inner & (spans.lane == lane)))
        at = np.flatnonzero(~known & (spans.lane == lane))
        place = np.searchsorted(starts, spans.start_ps[at], side="right")
        known[at] = (place > 0) & (spans.start_ps[at] < np.append(0, stops)[place])
    return ~known


def _matching(spans: Spans, pattern: re.Pattern[str]) -> np.ndarray:
    codes = [i for i, name in enumerate(spans.names) if pattern.fullmatch(name)]
    return np.isin(spans.code, codes)

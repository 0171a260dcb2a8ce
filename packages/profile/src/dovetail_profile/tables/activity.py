# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The kinds of annotations of a host: dispatch, compilation, or a name that a user gave.

The trace marks them all alike. Names tell them apart: JAX and XLA have few that can stand outside
a call of a program, and everything inside such a call is theirs.
"""

import re

import numpy as np

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
    """Returns a mask of calls that send work or data to devices: bool [spans]."""
    return _matching(spans, _CALL)


def compiles(spans: Spans) -> np.ndarray:
    """Returns a mask of compilations, and of calls that compiled first: bool [spans]."""
    compiled, called = _matching(spans, _COMPILE), calls(spans)
    holds = np.zeros(len(spans), bool)
    for lane in np.unique(spans.lane[compiled]):
        starts = np.sort(spans.start_ps[compiled & (spans.lane == lane)])
        at = np.flatnonzero(called & (spans.lane == lane))
        start, stop = spans.start_ps[at], spans.start_ps[at] + spans.duration_ps[at]
        holds[at] = np.searchsorted(starts, start) < np.searchsorted(starts, stop)
    return compiled | holds


def of_user(spans: Spans) -> np.ndarray:
    """Returns a mask of annotations of the traced program, and of its libraries: bool [spans].

    They have a name that neither JAX, XLA nor the tracer of Python gives, on a thread that is not
    XLA's, outside of calls of compiled functions.
    """
    pools = np.array([name.startswith("tf_") for name in spans.lanes], bool)
    inner = compiles(spans) | calls(spans)
    known = inner | _matching(spans, _OTHER)
    if len(pools):
        known |= pools[spans.lane]
    for lane in np.unique(spans.lane[~known]):
        outer = inner & (spans.lane == lane)
        if not outer.any():
            continue
        starts, stops = union_ps(spans.start_ps[outer], (spans.start_ps + spans.duration_ps)[outer])
        at = np.flatnonzero(~known & (spans.lane == lane))
        place = np.searchsorted(starts, spans.start_ps[at], side="right") - 1
        known[at] = (place >= 0) & (spans.start_ps[at] < stops[place])
    return ~known


def _matching(spans: Spans, pattern: re.Pattern[str]) -> np.ndarray:
    names = np.array([bool(pattern.fullmatch(name)) for name in spans.names], bool)
    return names[spans.code] if len(names) else np.zeros(len(spans), bool)

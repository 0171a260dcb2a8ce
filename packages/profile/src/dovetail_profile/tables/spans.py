# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Latencies of named host activities: the annotations of the traced program."""

import dataclasses

import numpy as np

from dovetail_profile.table import Table
from dovetail_profile.tables.activity import of_user
from dovetail_profile.trace.recording import Recording


@dataclasses.dataclass(frozen=True)
class AnnotationRow:
    """The annotations of one name, on the threads of all hosts.

    Attributes:
        name: As `jax.profiler.TraceAnnotation` got it.
        calls: Number of them.
        total_us: Time of all, with what is nested in them.
        p50_us: Median time of one.
        p99_us: 99th percentile, likewise.
    """

    name: str
    calls: int
    total_us: float
    p50_us: float
    p99_us: float


def annotations(recording: Recording) -> Table[AnnotationRow]:
    """Returns the annotations of the program and its libraries, the one with most time first.

    What JAX, XLA and the tracer of Python annotate is left out. A step counts from the start of its
    annotation to the end, not to the next one.
    """
    spans = recording.spans
    keep = of_user(spans)
    code, duration = spans.code[keep], spans.duration_ps[keep]
    rows = []
    for name in np.unique(code):
        times = duration[code == name]
        p50, p99 = np.percentile(times, (50, 99))
        total, p50, p99 = (float(ps) / 1e6 for ps in (times.sum(), p50, p99))
        rows.append(AnnotationRow(spans.names[name], len(times), total, p50, p99))
    return Table(AnnotationRow, tuple(sorted(rows, key=lambda row: -row.total_us)))

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
        total_us: Time of all, with nested annotations.
        p50_us, p99_us: Percentiles of the time of one.
    """

    name: str
    calls: int
    total_us: float
    p50_us: float
    p99_us: float


def annotations(recording: Recording) -> Table[AnnotationRow]:
    """Returns the annotations of the program and its libraries, the one with most time first.

    Those of JAX, XLA and the tracer of Python are left out. A step counts from the start of its
    annotation to the end, not to the next one.
    """
    spans = recording.spans
    keep = of_user(spans)
    code, duration = spans.code[keep], spans.duration_ps[keep]
    rows = []
    for name in np.unique(code):
        us = duration[code == name] / 1e6
        figures = (us.sum(), *np.percentile(us, (50, 99)))
        rows.append(AnnotationRow(spans.names[name], len(us), *map(float, figures)))
    return Table(AnnotationRow, tuple(sorted(rows, key=lambda row: -row.total_us)))

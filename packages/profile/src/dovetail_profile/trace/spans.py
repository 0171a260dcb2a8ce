# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Activities of threads of a host: annotations of a program, and calls of JAX."""

import dataclasses

import numpy as np

from dovetail_profile.trace.events import Events
from dovetail_profile.trace.space import Line


@dataclasses.dataclass(frozen=True)
class Spans(Events):
    """Events of a host other than runs of instructions.

    Attributes:
        step: int64 [events], the `step_num` of a `StepTraceAnnotation`; -1: none.
    """

    step: np.ndarray

    def named(self, *names: str) -> np.ndarray:
        """Returns a mask of the spans with given names: bool [events]."""
        codes = [i for i, name in enumerate(self.names) if name in names]
        return np.isin(self.code, codes)


def spans_of(line: Line, host: int) -> Spans:
    """Returns the spans of a thread. `host` is the index of its host."""
    mask = np.ones(len(line), bool)
    mask[line.stats("hlo_op").owner] = False
    return Spans(
        host=np.full(len(line), host),
        lane=np.zeros(len(line), np.int64),
        start_ps=line.start_ps,
        duration_ps=line.duration_ps,
        code=line.code,
        names=line.names,
        lanes=(line.name,),
        step=line.each("step_num"),
    ).select(mask)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which cases of parametrized tests a second Python leaves out.

Every test function still runs. Of its cases, the first, every fourth after it and the last are
kept. So it is where the environment says SUITE_CASES=sample, as `.ci/run` does for the sessions on
Python 3.12: with no compiled program at hand, both Pythons in full take longer than a change may.
"""

from __future__ import annotations

from collections import defaultdict

VARIABLE, SAMPLE = "SUITE_CASES", "sample"
EVERY = 4


def left_out(names: list[str]) -> set[str]:
    """The cases to leave out, by the node ids of all tests in order."""
    cases = defaultdict(list)
    for name in names:
        cases[name.partition("[")[0]].append(name)
    out: set[str] = set()
    for own in cases.values():
        out |= set(own) - {*own[::EVERY], own[-1]}
    return out

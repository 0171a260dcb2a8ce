# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which cases of parametrized tests a second Python leaves out.

Every test function still runs, with one of its cases. A checksum of its name chooses which, so the
functions of a suite do not all meet the same family, device or dtype.

So it is where the environment says SUITE_CASES=sample, as `.ci/run` does for the sessions on Python
3.12: with no compiled program at hand, both Pythons in full take longer than a change may. The same
sessions by themselves, and the workflow test.yml, run all cases.
"""

from __future__ import annotations

import zlib
from collections import defaultdict

VARIABLE, SAMPLE = "SUITE_CASES", "sample"


def left_out(names: list[str]) -> set[str]:
    """The cases to leave out, by the node ids of all tests in order."""
    cases = defaultdict(list)
    for name in names:
        cases[name.partition("[")[0]].append(name)
    kept = {own[zlib.crc32(test.encode()) % len(own)] for test, own in cases.items()}
    return set(names) - kept

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import pytest

PROGRAM = """
import sys
{block}
import logging
import dovetail_data
import dovetail_data.batching.iterator
from dovetail_data.batching.grain import DatasetIterator
assert not logging.getLogger("absl").filters
logging.getLogger("absl").warning("Failed to load jax profiler: said by somebody else")
"""


@pytest.mark.parametrize(
    "block",
    [
        pytest.param("", marks=pytest.mark.thorough, id="jax"),  # its import takes a second
        pytest.param("sys.modules['jax'] = None", id="no jax"),
    ],
)
def test_the_import_says_nothing(block):
    program = PROGRAM.format(block=block)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout == ""
    (line,) = run.stderr.splitlines()
    assert line.endswith("Failed to load jax profiler: said by somebody else")

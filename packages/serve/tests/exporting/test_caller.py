# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Warnings point at the line that called the package, however deep they come from."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.thorough

# In a process of its own, where no type check stands between the functions.
CALL = """
import warnings
import numpy as np
from dovetail_serve import Tensor, export

table = np.ones((3, 100_000), "float32")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    export(lambda p, *, x: {"y": x @ table}, {}, inputs={"x": Tensor((2, 3), "float32")},
           example={"x": np.ones((2, 3), "float32")}, platforms=("cpu",))  # the line of the call
print([(w.category.__name__, w.filename, w.lineno, str(w.message)[:30]) for w in caught])
"""


def test_warnings_name_the_line_of_the_call():
    result = subprocess.run(
        [sys.executable, "-c", CALL], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    line = 1 + CALL.splitlines().index(next(c for c in CALL.splitlines() if "export(" in c))
    expected = [("UserWarning", "<string>", line, "fn captures 1200000 bytes of a")]
    assert result.stdout.strip() == repr(expected)

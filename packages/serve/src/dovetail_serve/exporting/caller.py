# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Warnings at the line of a call into this package."""

import sys
import warnings
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent


def warn(message: str) -> None:
    """Issues a UserWarning at the calling line outside of the package."""
    level, frame = 1, sys._getframe()
    while frame.f_back and _PACKAGE in Path(frame.f_code.co_filename).parents:
        level, frame = level + 1, frame.f_back
    warnings.warn(message, UserWarning, stacklevel=level)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the controller."""

import sys
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest

sys.path.append(str(Path(__file__).parent))  # simulated.py and its hosts


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the types that this suite checks, as in a user's program: five times as fast."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)

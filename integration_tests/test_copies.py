# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The copies of a shared file are equal to it."""

import pytest

import copies
import workspace

pytestmark = pytest.mark.once


def test_the_copies_are_equal():
    for original, others in copies.copies(workspace.ROOT).items():
        assert len(others) > 1, f"{original} is needed by one package at most"
        for copy in others:
            assert copy.read_bytes() == original.read_bytes(), "run python scripts/copies.py"

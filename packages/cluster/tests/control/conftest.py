# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the controller."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))  # simulated.py

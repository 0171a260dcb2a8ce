# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Registers the marker that Tokamax's tests bear, since markers are strict here."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: of Tokamax's own tests")

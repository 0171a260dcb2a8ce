# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Schedules, and the rates that a transformation has."""

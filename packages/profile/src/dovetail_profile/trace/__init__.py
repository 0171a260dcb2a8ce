# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Traces: files of a profiler, their events, and the runs on devices."""

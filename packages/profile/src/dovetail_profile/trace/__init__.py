# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Traces: the files of a profiler, the events in them, and what each device executed."""

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Profiles as files: a page to read, JSON for programs, and a trace for Perfetto."""

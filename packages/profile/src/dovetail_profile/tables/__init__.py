# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Answers: functions from a recording to a table."""

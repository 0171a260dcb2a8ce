# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The commands, a module each: `add` declares arguments, `run` returns the exit code."""

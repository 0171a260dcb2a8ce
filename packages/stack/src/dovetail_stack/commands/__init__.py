# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One module for each command: `add` declares its arguments, `run` returns the exit code.

They import the libraries when they run, so that `dovetail doctor` works where one is broken.
"""

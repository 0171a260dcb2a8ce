# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One update as a compiled program: state, loss, metrics, guard, optimizer."""

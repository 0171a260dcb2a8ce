# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer and its loop: hooks, prefetching, the account of time, slow devices."""

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Where time and memory of JAX programs went, as tables and one page."""

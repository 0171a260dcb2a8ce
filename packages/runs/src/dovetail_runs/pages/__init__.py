# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Pages of runs: curves to zoom into, and tables, in one HTML file or live."""

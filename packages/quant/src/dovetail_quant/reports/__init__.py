# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Reports of cost and error, and the search for a plan within a budget."""

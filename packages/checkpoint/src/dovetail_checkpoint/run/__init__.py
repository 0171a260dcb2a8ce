# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The steps of a run: saving, restoring, keeping and deleting them."""

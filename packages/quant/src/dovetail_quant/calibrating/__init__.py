# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics of activations and calibrated weights."""

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Configurations: plain values that describe a model."""

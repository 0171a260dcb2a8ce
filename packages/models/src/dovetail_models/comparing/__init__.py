# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Comparison of models and of their Hugging Face directories."""

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Hugging Face directories, read and written without the Hugging Face libraries."""

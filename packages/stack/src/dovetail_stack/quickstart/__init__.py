# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The first run: the standard library becomes a language model, and a report says how well."""

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The wanted layout of a tree: rules, plans and targets, and safetensors files as sources."""

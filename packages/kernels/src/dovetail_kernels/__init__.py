# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The hot operations of transformers: one documented answer on every backend."""

from dovetail_kernels.explain import Report as Report
from dovetail_kernels.explain import explain as explain

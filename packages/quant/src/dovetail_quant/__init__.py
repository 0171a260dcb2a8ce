# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Quantization of any NNX model: planned, calibrated, measured, saved."""

from dovetail_quant.spec import Spec as Spec

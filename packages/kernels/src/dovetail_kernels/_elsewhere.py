# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of other libraries, with what to write here."""

PACKAGE = {
    "scaled_dot_product_attention": "attention",
    "dot_product_attention": "attention",
    "flash_attention": "attention",
    "softmax_cross_entropy": "linear_cross_entropy",
    "ragged_dot": "grouped_matmul",
}

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conformance suites for any implementation of an operation.

Each `check_*` takes a function with the signature of the operation and `supports`, the features it
must compute correctly. Other features must be correct or refused. Expected values are NumPy
float64. For parametrised tests, the module of each suite has its cases one by one.
"""

from dovetail_kernels.testing.attention import check_attention as check_attention
from dovetail_kernels.testing.grouped import check_grouped_matmul as check_grouped_matmul
from dovetail_kernels.testing.loss import check_linear_cross_entropy as check_linear_cross_entropy
from dovetail_kernels.testing.loss import check_linear_logprobs as check_linear_logprobs
from dovetail_kernels.testing.paged import check_paged_attention as check_paged_attention
from dovetail_kernels.testing.paged import check_paged_write as check_paged_write
from dovetail_kernels.testing.quantized import check_quantized_matmul as check_quantized_matmul
from dovetail_kernels.testing.routing import check_route_tokens as check_route_tokens
from dovetail_kernels.testing.sampling import check_sample as check_sample

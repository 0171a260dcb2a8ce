# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The Open Inference Protocol over gRPC. It needs the extra "grpc"."""

from dovetail_serve.rpc import _extras as _extras  # first: it says what to install

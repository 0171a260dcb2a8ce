# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks for the extra "grpc". Imported before the others."""

from dovetail_serve._extra import require

require("grpc", "grpc", "google.protobuf")

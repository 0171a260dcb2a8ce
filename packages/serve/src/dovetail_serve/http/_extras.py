# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks for the extra "server". Imported before the others."""

from dovetail_serve._extra import require

require("server", "httptools", "orjson", "prometheus_client", "starlette", "uvicorn")

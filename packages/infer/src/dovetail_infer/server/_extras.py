# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks for the extra "server". Imported before the others."""

import importlib

for _name in ("httptools", "orjson", "prometheus_client", "starlette", "uvicorn"):
    try:
        importlib.import_module(_name)
    except ImportError as error:
        raise ImportError(
            "dovetail_infer.server must have the modules of the extra 'server', got no "
            f"{_name}; run pip install 'dovetail-infer[server]'",
            name=_name,
        ) from error

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Modules of an extra: a missing one is answered by the line to type."""

import importlib


def require(extra: str, *modules: str) -> None:
    """Raises ImportError unless the modules of an extra are installed."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ImportError(
                f"this part of dovetail-serve must have the modules of the extra {extra!r}, got no "
                f"{name}; run pip install 'dovetail-serve[{extra}]'",
                name=name,
            ) from error

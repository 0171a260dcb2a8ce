# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A program for `python -c` that imports an installed package, in the sessions of noxfile.py."""

# Every module that a user may import; those with an underscore and programs are not. A folder that
# needs an extra of its package may say so instead.
ALL = """
import importlib, pkgutil, {module} as package
extra = "pip install '{module}[".replace("_", "-")
for found in pkgutil.walk_packages(package.__path__, "{module}."):
    if not any(part.startswith("_") for part in found.name.split(".")):
        try:
            importlib.import_module(found.name)
        except ImportError as error:
            if not found.ispkg or extra not in str(error):
                raise
"""

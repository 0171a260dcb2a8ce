# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Loads and calls a bundle in a process where importing Flax, Orbax or safetensors fails.

Usage: python without_flax.py BUNDLE INPUT.npy OUTPUT.npy
"""

import sys

ABSENT = ("flax", "orbax", "optax", "safetensors", "uvicorn", "starlette", "grpc", "orjson")
for name in ABSENT:
    sys.modules[name] = None  # an import of it raises ImportError

import numpy as np  # noqa: E402

from dovetail_serve import load  # noqa: E402

np.save(sys.argv[3], load(sys.argv[1])(x=np.load(sys.argv[2]))["y"])

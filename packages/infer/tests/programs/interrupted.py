# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs until Ctrl-C, then uses the same engine again."""

import gc

from flax import nnx

from dovetail_infer import Engine, Sampling
from dovetail_infer.testing import TinyDecoder

gc.disable()  # JAX has a callback of the collector, which swallows a Ctrl-C that comes meanwhile
engine = Engine(
    TinyDecoder(rngs=nnx.Rngs(0)), max_length=128, kv_bytes=2**22, step_tokens=32, max_rows=8
)
engine.generate([[1]], Sampling(max_tokens=2))
try:
    print("running", flush=True)
    while True:
        engine.generate([[i] for i in range(200)], Sampling(max_tokens=100))
except KeyboardInterrupt:
    (one,) = engine.generate([[1]], Sampling(max_tokens=1))
    used = sum(page.used for page in engine.stats().pages)
    print(f"interrupted, {used} pages, {len(one.tokens)} more")

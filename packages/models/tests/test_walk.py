# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The way of a forward pass stays short."""

import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

import dovetail_models
from dovetail_models import init, llama

pytestmark = [pytest.mark.thorough, pytest.mark.once]

SOURCE = Path(dovetail_models.__file__).parent
# Embedding and head, the loop over blocks, a block, its norms and feed-forward layer, projections,
# RoPE, the default attention, and the placement of activations.
FILES = {
    *("model/decoder.py", "model/run.py", "layers/block.py", "layers/tokenwise.py"),
    *("layers/linear.py", "layers/rope.py", "model/reference.py", "placing/activations.py"),
}


def test_a_forward_pass_of_a_llama_enters_eight_files():
    """A file more is a file more that each reader opens: put it off the way, or join two."""
    config = llama(vocab_size=32, embed=16, depth=2, heads=4, kv_heads=2, mlp=24)
    model, tokens, entered = init(config, seed=0), jnp.zeros((1, 5), jnp.int32), set()

    def enter(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            entered.add(path.relative_to(SOURCE).as_posix())

    previous = sys.getprofile()
    sys.setprofile(enter)
    try:
        model(tokens)
    finally:
        sys.setprofile(previous)
    assert entered == FILES

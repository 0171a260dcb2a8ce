# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What needs no transformers; the rest is in tests/parity/test_diverge.py."""

import sys

import pytest

from dovetail_models import diverge, llama


def test_without_transformers_it_says_what_to_install(random_model, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    config = llama(vocab_size=40, embed=12, depth=1, heads=6, kv_heads=2, head_dim=4, mlp=20)
    with pytest.raises(ImportError, match="runs transformers beside the model") as error:
        diverge(random_model(config), "nowhere")
    assert "torch" in str(error.value)
    assert "pip install torch transformers" in str(error.value)

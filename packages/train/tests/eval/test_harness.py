# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The adapter itself is tested in tests/parity, where lm-eval is."""

import builtins

import pytest
from flax import nnx

from dovetail_train.eval.harness import LMEval


class _Tokenizer:
    bos_id, eos_id = 1, 2

    def encode(self, texts):
        return []

    def decode(self, ids):
        return ""


def test_without_lm_eval_the_message_says_what_to_type(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("lm_eval"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ModuleNotFoundError, match=r"needs lm-eval, got no mod.*pip install dovetail-train\[lm-e"
    ):
        LMEval(nnx.Module(), _Tokenizer(), length=8)

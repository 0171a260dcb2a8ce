# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The sink itself is tested in tests/parity, where W&B is."""

import builtins

import pytest

from dovetail_train.weights_and_biases import Wandb


def test_without_wandb_the_message_says_what_to_type(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "wandb":
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ModuleNotFoundError, match=r"needs wandb, got no mod.*pip install dovetail-train\[wandb\]"
    ):
        Wandb(project="p", id="one", directory=tmp_path)

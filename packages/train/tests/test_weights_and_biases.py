# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The sink itself is tested in tests/parity, where W&B is."""

import builtins
import sys
import types

import pytest

from dovetail_train.logs.weights_and_biases import Wandb


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


def test_another_mode_is_refused(tmp_path, unchecked):
    message = r"mode must be one of online, offline, disabled, got mode='off'; leave .*WANDB_MODE"
    with pytest.raises(ValueError, match=message):
        Wandb(project="p", id="one", directory=tmp_path / "new", mode="off")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "variable, mode, used",
    [
        (None, None, None),  # W&B's default: online
        ("", None, None),
        ("offline", None, "offline"),
        ("disabled", None, "disabled"),
        ("offline", "online", "online"),
        ("disabled", "offline", "offline"),
    ],
)
def test_a_given_mode_wins_over_the_environment(variable, mode, used, tmp_path, monkeypatch):
    made = []
    run = types.SimpleNamespace(step=0)
    fake = types.SimpleNamespace(init=lambda **options: made.append(options["mode"]) or run)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    if variable is not None:
        monkeypatch.setenv("WANDB_MODE", variable)
    Wandb(project="p", id="one", directory=tmp_path, mode=mode)
    assert made == [used]

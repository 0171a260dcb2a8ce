# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The two ways in which config.json tells RoPE.

Until transformers 4 it was `rope_theta` with `rope_scaling`; from 5 on one mapping,
`rope_parameters`. A reader that knows one of them silently falls back to a theta of 10000 on the
other, so both are read and both are written.
"""

from typing import Any

from dovetail_models.config import Llama3Scaling, Rope
from dovetail_models.hf.table import Keys

_LLAMA3 = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_length",
}


def read_rope(keys: Keys, *, default_theta: float = 10_000.0) -> Rope:
    """RoPE from either convention; ValueError if both are there and disagree."""
    theta, scaling = keys.take("rope_theta"), keys.take("rope_scaling")
    new = keys.take("rope_parameters")
    old = None
    if theta is not None or scaling is not None or new is None:
        old = _rope({"rope_theta": theta or default_theta, **(scaling or {})})
    if new is None:
        assert old is not None
        return old
    rope = _rope({"rope_theta": theta or default_theta, **new})
    if old is not None and (old.theta != rope.theta or (scaling and old != rope)):
        raise ValueError(
            "rope_theta and rope_scaling must say the same as rope_parameters, got "
            f"rope_theta={theta}, rope_scaling={scaling}, rope_parameters={new}. "
            "Remove the one that is wrong from config.json."
        )
    return rope


def write_rope(rope: Rope) -> dict[str, Any]:
    """Both conventions."""
    scaling = None
    if rope.scaling is not None:
        numbers = {theirs: getattr(rope.scaling, ours) for theirs, ours in _LLAMA3.items()}
        scaling = {"rope_type": "llama3", **numbers}
    kind = scaling or {"rope_type": "default"}
    return {
        "rope_theta": rope.theta,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_theta": rope.theta, **kind},
    }


def _rope(values: dict[str, Any]) -> Rope:
    values = dict(values)
    theta = float(values.pop("rope_theta"))
    # The oldest files say "type".
    old_kind = values.pop("type", "default")
    kind = values.pop("rope_type", old_kind)
    if kind == "default" and not values:
        return Rope(theta=theta)
    if kind != "llama3" or set(values) != set(_LLAMA3):
        raise ValueError(
            "RoPE must be of type 'default' without further keys, or 'llama3' with "
            f"{sorted(_LLAMA3)}, got rope_type={kind!r} with {values}. "
            "No module here computes another; use the library that wrote the file."
        )
    numbers = {ours: values[theirs] for theirs, ours in _LLAMA3.items()}
    return Rope(theta=theta, scaling=Llama3Scaling(**numbers))

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The two ways in which config.json tells RoPE.

Until transformers 4 it was `rope_theta` with `rope_scaling`; from 5 on one mapping,
`rope_parameters`. A reader that knows one of them silently falls back to a theta of 10000 on the
other, so both are read and both are written.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from dovetail_models.hf.table import Keys
from dovetail_models.rope_config import LinearScaling, Llama3Scaling, Rope, YarnScaling

_KINDS = {"linear": LinearScaling, "llama3": Llama3Scaling, "yarn": YarnScaling}
# Where their name of a number is not ours.
_THEIRS = {"original_length": "original_max_position_embeddings"}


def read_rope(keys: Keys, *, default_theta: float = 10_000.0) -> Rope:
    """RoPE from either convention; ValueError if both are there and disagree."""
    theta, scaling = keys.take("rope_theta"), keys.take("rope_scaling")
    new = keys.take("rope_parameters")
    old = None
    if theta is not None or scaling is not None or new is None:
        old = parse_rope({"rope_theta": theta or default_theta, **(scaling or {})})
    if new is None:
        assert old is not None
        return old
    rope = parse_rope({"rope_theta": theta or default_theta, **new})
    if old is not None and (old.theta != rope.theta or (scaling and old != rope)):
        raise ValueError(
            "rope_theta and rope_scaling must say the same as rope_parameters, got "
            f"rope_theta={theta}, rope_scaling={scaling}, rope_parameters={new}. "
            "Remove the one that is wrong from config.json."
        )
    return rope


def write_rope(rope: Rope) -> dict[str, Any]:
    """Both conventions."""
    scaling = describe_scaling(rope)
    kind = scaling or {"rope_type": "default"}
    return {
        "rope_theta": rope.theta,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_theta": rope.theta, **kind},
    }


def describe_scaling(rope: Rope) -> dict[str, Any] | None:
    """The value of `rope_scaling`: None for frequencies that are not stretched."""
    if rope.scaling is None:
        return None
    kind = next(name for name, scaling in _KINDS.items() if isinstance(rope.scaling, scaling))
    numbers = dataclasses.asdict(rope.scaling).items()
    # What is not written is read as None, or as True.
    written = {_THEIRS.get(n, n): v for n, v in numbers if v is not None and v is not True}
    return {"rope_type": kind, **written}


def parse_rope(values: Mapping[str, Any]) -> Rope:
    """RoPE from one mapping with `rope_theta`, `rope_type` and the numbers of that type."""
    rest = {name: value for name, value in values.items() if value is not None}
    theta = float(rest.pop("rope_theta"))
    # The oldest files say "type".
    old_kind = rest.pop("type", "default")
    kind = rest.pop("rope_type", old_kind)
    if kind == "default" and not rest:
        return Rope(theta=theta)
    fields = dataclasses.fields(_KINDS[kind]) if kind in _KINDS else ()
    ours = {_THEIRS.get(field.name, field.name): field.name for field in fields}
    needed = {
        _THEIRS.get(field.name, field.name)
        for field in fields
        if field.default is dataclasses.MISSING
    }
    if not ours or not needed <= set(rest) <= set(ours):
        known = {name: sorted(f.name for f in dataclasses.fields(k)) for name, k in _KINDS.items()}
        raise ValueError(
            "RoPE must be of type 'default' without further keys, or of one of these types with "
            f"these numbers: {known} (original_length is written "
            f"original_max_position_embeddings), got rope_type={kind!r} with {rest}. "
            "No module here computes another; use the library that wrote the file."
        )
    return Rope(theta=theta, scaling=_KINDS[kind](**{ours[n]: v for n, v in rest.items()}))

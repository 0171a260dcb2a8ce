# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""RoPE in config.json, in both conventions.

transformers 4 and older write `rope_theta` and `rope_scaling`; 5 and later write one mapping,
`rope_parameters`. A reader of only one convention silently takes a theta of 10000 for the other. So
both are read, and both are written.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from dovetail_models.hf.table import Keys
from dovetail_models.rope_config import LinearScaling, Llama3Scaling, Rope, YarnScaling

_KINDS = {"linear": LinearScaling, "llama3": Llama3Scaling, "yarn": YarnScaling}
# transformers' names for fields of another name.
_THEIRS = {"original_length": "original_max_position_embeddings"}


def read_rope(keys: Keys, *, default_theta: float = 10_000.0) -> Rope:
    """Reads RoPE from either convention.

    Args:
        keys: The keys of config.json.
        default_theta: Base frequency for a missing key.

    Raises:
        ValueError: Both conventions are present and disagree, or the type is unknown.
    """
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
    """Returns the keys of both conventions."""
    scaling = describe_scaling(rope)
    kind = scaling or {"rope_type": "default"}
    return {
        "rope_theta": rope.theta,
        "rope_scaling": scaling,
        "rope_parameters": {"rope_theta": rope.theta, **kind},
    }


def describe_scaling(rope: Rope) -> dict[str, Any] | None:
    """Returns the value of `rope_scaling`; None for unscaled frequencies."""
    if rope.scaling is None:
        return None
    kind = next(name for name, scaling in _KINDS.items() if isinstance(rope.scaling, scaling))
    numbers = dataclasses.asdict(rope.scaling).items()
    # A missing number is read as None, a missing flag as True.
    written = {_THEIRS.get(n, n): v for n, v in numbers if v is not None and v is not True}
    return {"rope_type": kind, **written}


def parse_rope(values: Mapping[str, Any]) -> Rope:
    """Reads RoPE from a mapping with `rope_theta`, `rope_type` and the numbers of this type.

    Raises:
        ValueError: The type is unknown, or its numbers are missing or unexpected.
    """
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

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""RoPE in config.json, in both conventions, as transformers 5 reads it.

transformers 4 and older write `rope_theta` and `rope_scaling`; 5 and later write one mapping,
`rope_parameters`. A reader of only one convention silently takes a theta of 10000 for the other. So
both are read, and both are written.

A scaling without `original_max_position_embeddings` has that of the outer keys, and otherwise
`max_position_embeddings`. Dynamic scaling always starts at `max_position_embeddings`. No family
here rotates a part of a head: transformers ignores `partial_rotary_factor` in unscaled RoPE, which
is logged, and fails in scaled RoPE, which is refused.
"""

import dataclasses
import logging
from collections.abc import Mapping
from typing import Any

from dovetail_models.config.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    Scaling,
    YarnScaling,
)
from dovetail_models.tables.config_json import Keys

_log = logging.getLogger(__name__)
_KINDS: dict[str, type[Scaling]] = {
    "linear": LinearScaling,
    "llama3": Llama3Scaling,
    "yarn": YarnScaling,
    "dynamic": DynamicScaling,
    "longrope": LongRopeScaling,
}
_ORIGINAL, _PARTIAL = "original_max_position_embeddings", "partial_rotary_factor"
# transformers' names for fields of another name.
_THEIRS = {"original_length": _ORIGINAL}
# Kinds with a factor that may be missing: the ratio of the two context lengths.
_RATIO = "yarn", "longrope"
# Numbers that other programs read and transformers does not, with the value of no effect.
_UNREAD = {"finetuned": (True, False), "extrapolation_factor": (1,)}
# The same, with any value: DeepSeek-R1-0528-Qwen3-8B has 0.878.
_OTHERS_READ = "attn_factor"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
    """Keys of config.json beside those of RoPE.

    Attributes:
        max_length: `max_position_embeddings`.
        width: Number of rotated elements of a head.
        original: `original_max_position_embeddings` outside the scaling, or None.
        partial: `partial_rotary_factor` outside the scaling, or None.
    """

    max_length: int
    width: int
    original: int | None = None
    partial: float | None = None


def read_rope(
    keys: Keys,
    *,
    max_length: int,
    width: int,
    default_theta: float = 10_000.0,
    default: Mapping[str, Any] | None = None,
) -> Rope:
    """Reads RoPE from either convention.

    Args:
        keys: The keys of config.json.
        max_length: `max_position_embeddings`.
        width: Number of rotated elements of a head.
        default_theta: Base frequency for a missing key.
        default: Scaling of a config.json that names none. None: no scaling.

    Raises:
        ValueError: Both conventions are present and disagree, the type is unknown, or a number of
            it is missing, unexpected or wrong.
    """
    theta, scaling = keys.take("rope_theta"), _mapping("rope_scaling", keys.take("rope_scaling"))
    new = _mapping("rope_parameters", keys.take("rope_parameters"))
    outer = Outer(
        max_length=max_length,
        width=width,
        original=keys.take(_ORIGINAL),
        partial=keys.take(_PARTIAL),
    )
    base = {"rope_theta": default_theta if theta is None else theta}
    old = None
    if theta is not None or scaling is not None or new is None:
        unnamed = default if new is None else None
        old = parse_rope({**base, **(scaling or unnamed or {})}, outer)
    if new is None:
        assert old is not None
        return old
    rope = parse_rope({**base, **new}, outer)
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
    numbers = dataclasses.asdict(rope.scaling)
    if kind == "dynamic":
        # It is max_position_embeddings, whatever is written here.
        del numbers["original_length"]
    # A missing number is read as None, a missing flag as True.
    written = {_THEIRS.get(n, n): v for n, v in numbers.items() if v is not None and v is not True}
    lists = {n: list(v) for n, v in written.items() if isinstance(v, tuple)}
    return {"rope_type": kind, **written, **lists}


def parse_rope(values: Mapping[str, Any], outer: Outer) -> Rope:
    """Reads RoPE from a mapping with `rope_theta`, `rope_type` and the numbers of this type.

    Args:
        values: The mapping.
        outer: Keys beside it.

    Raises:
        ValueError: The type is unknown, or a number is missing, unexpected or wrong.
    """
    rest = {name: value for name, value in values.items() if value is not None}
    theta = _number("rope_theta", rest.pop("rope_theta"))
    # The oldest files say "type".
    old_kind = rest.pop("type", "default")
    kind = rest.pop("rope_type", old_kind)
    _check_partial(rest.pop(_PARTIAL, outer.partial), kind, outer.width)
    for name, harmless in _UNREAD.items():
        if rest.get(name) in harmless:
            del rest[name]
    factor = rest.pop(_OTHERS_READ, 1)
    if factor != 1:
        _log.warning("RoPE does not depend on %s=%s, as in transformers.", _OTHERS_READ, factor)
    if kind == "default" and not rest:
        return Rope(theta=theta)
    fields = dataclasses.fields(_KINDS[kind]) if kind in _KINDS else ()
    ours = {_THEIRS.get(field.name, field.name): field.name for field in fields}
    if fields:
        _fill(rest, kind, ours, outer)
    needed = {
        _THEIRS.get(field.name, field.name)
        for field in fields
        if field.default is dataclasses.MISSING
    }
    if not ours or not needed <= set(rest) <= set(ours):
        known = {name: sorted(f.name for f in dataclasses.fields(k)) for name, k in _KINDS.items()}
        raise ValueError(
            "RoPE must be of type 'default' without further keys, or of one of these types with "
            f"these numbers: {known} (original_length is written {_ORIGINAL}), got "
            f"rope_type={kind!r} with {rest}. "
            "No module here computes another; use the library that wrote the file."
        )
    numbers = {ours[name]: _value(name, value) for name, value in rest.items()}
    rope = Rope(theta=theta, scaling=_KINDS[kind](**numbers))
    if isinstance(rope.scaling, LongRopeScaling):
        _check_factors(rope.scaling, outer.width)
    return rope


def _fill(rest: dict[str, Any], kind: str, ours: Mapping[str, str], outer: Outer) -> None:
    """Adds the numbers that follow from the keys beside the scaling, as transformers does."""
    if kind in ("dynamic", "linear"):
        unread = rest.pop(_ORIGINAL, outer.max_length)
        if unread != outer.max_length:
            _log.warning("RoPE of type %r does not depend on %s=%s.", kind, _ORIGINAL, unread)
    if kind == "dynamic":
        rest[_ORIGINAL] = outer.max_length
    elif _ORIGINAL in ours:
        own = rest.get(_ORIGINAL, outer.max_length)
        rest[_ORIGINAL] = own if outer.original is None else outer.original
    if kind in _RATIO and "factor" not in rest:
        rest["factor"] = outer.max_length / _number(_ORIGINAL, rest[_ORIGINAL])


def _check_partial(partial: Any, kind: str, width: int) -> None:
    """Refuses a partial rotation where transformers cannot compute it, or logs its omission."""
    if partial is None or int(_number(_PARTIAL, partial) * width) == width:
        return
    if kind != "default":
        raise ValueError(
            f"RoPE of type {kind!r} must rotate whole heads in this family, got {_PARTIAL}="
            f"{partial}. transformers fails on it too; use the library that wrote the file."
        )
    _log.warning(
        "Whole heads are rotated in spite of %s=%s, as transformers does in this family.",
        _PARTIAL,
        partial,
    )


def _check_factors(scaling: LongRopeScaling, width: int) -> None:
    if 2 * len(scaling.short_factor) != width:
        raise ValueError(
            f"short_factor and long_factor must hold {width // 2} numbers each, one per pair of a "
            f"head, got {len(scaling.short_factor)}. Correct config.json."
        )


def _value(name: str, value: Any) -> Any:
    """Returns a number, the flag `truncate`, or a tuple of factors."""
    if name == "truncate":
        if not isinstance(value, bool):
            raise ValueError(
                f"RoPE's {name} must be true or false, got {name}={value!r}. Correct config.json."
            )
        return value
    if name in ("short_factor", "long_factor"):
        return tuple(_number(name, x) for x in (value if isinstance(value, list) else [value]))
    number = _number(name, value)
    return int(number) if name == _ORIGINAL and number == int(number) else number


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(
            f"RoPE's {name} must be a number, got {name}={value!r}. Correct config.json."
        )
    return float(value)


def _mapping(name: str, value: Any) -> dict[str, Any] | None:
    if value is not None and not isinstance(value, dict):
        raise ValueError(
            f"config.json key {name!r} must be an object, got {name}={value!r}. "
            "Correct config.json."
        )
    return value

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The cases of attention's conformance suite (attention.py), each with the features it needs."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One call: shapes, and the options that are not at their default.

    Attributes:
        name: Name of the case. It seeds the arrays.
        needs: Features of the case.
        batch: Rows.
        queries: Length of q.
        keys: Length of k and v.
        heads: Heads of q.
        kv_heads: Heads of k and v.
        head_dim: Last axis of q and k.
        value_dim: Last axis of v.
        dtype: Dtype of q, k and v.
        causal: As in `attention`.
        window: As in `attention`.
        segments: "packed" rows of one length, or a "pair" of sides with unmatched segments.
        positions: "gaps", twice the index in the segment, or a "pair" in any order.
        kv_lengths: Whether the call has lengths, from none to all keys.
        mask: Letters of "bnts" along which the mask varies, or None without one. Other axes are 1.
        bias: Letters along which the bias varies, or None without one.
        soft_cap: As in `attention`.
        sinks: Whether the call has sinks.
        scale: As in `attention`.
        stats: As in `attention`.
        poison: Place of NaN besides keys and values beyond kv_lengths: one "segment" of q, k and v,
            the "last" key, or the keys of each row that the "mask" hides.
    """

    name: str
    needs: frozenset[str]
    batch: int = 2
    queries: int = 24
    keys: int = 24
    heads: int = 2
    kv_heads: int = 2
    head_dim: int = 8
    value_dim: int = 8
    dtype: str = "float32"
    causal: bool = False
    window: int | tuple[int, int] | None = None
    segments: str | None = None
    positions: str | None = None
    kv_lengths: bool = False
    mask: str | None = None
    bias: str | None = None
    soft_cap: float | None = None
    sinks: bool = False
    scale: float | None = None
    stats: bool = False
    poison: str | None = None


def _case(name: str, **options: Any) -> Case:
    case = Case(name=name, needs=frozenset(), **options)
    one_number = isinstance(case.window, int)
    needs = {
        case.dtype: True,
        "causal": case.causal,
        "window": one_number and case.causal,
        "two_sided_window": one_number and not case.causal,
        "asymmetric_window": case.window is not None and not one_number,
        "segments": case.segments is not None,
        "positions": case.positions is not None,
        "kv_lengths": case.kv_lengths,
        "mask": case.mask is not None,
        "bias": case.bias is not None,
        "soft_cap": case.soft_cap is not None,
        "sinks": case.sinks,
        "scale": case.scale is not None,
        "stats": case.stats,
        "gqa": case.heads != case.kv_heads,
        "cross": case.queries != case.keys,
        "odd": bool(case.queries % 2 or case.keys % 2),
        "value_width": case.head_dim != case.value_dim,
        "isolation": case.poison is not None,
    }
    return dataclasses.replace(case, needs=frozenset(n for n, needed in needs.items() if needed))


def features() -> frozenset[str]:
    """Returns every feature needed by some case."""
    return frozenset().union(*(case.needs for case in cases()))


def cases() -> tuple[Case, ...]:
    """Returns all cases. Each feature comes first in a case of its own, if possible."""
    packed = {"causal": True, "segments": "packed", "queries": 290, "keys": 290}
    return (
        _case("plain"),
        _case("bfloat16", dtype="bfloat16", causal=True, heads=4),
        _case("causal", causal=True, queries=300, keys=300),
        _case("gqa, odd", causal=True, batch=3, heads=6, queries=37, keys=37),
        _case("cross", queries=6, keys=150, heads=4),
        _case("value width", value_dim=12),
        _case("scale", scale=0.7),
        _case("window", causal=True, window=33, queries=150, keys=150),
        _case("two-sided window", window=5, queries=140, keys=140),
        _case("asymmetric window", window=(3, 20), queries=140, keys=140),
        _case("asymmetric window, causal", window=(9, 4), causal=True, queries=40, keys=40),
        _case("packed segments", **packed),
        _case("segments without partner", segments="pair", queries=20, keys=60),
        _case("positions in any order", causal=True, positions="pair", queries=30, keys=150),
        _case("positions with gaps", positions="gaps", window=20, **packed),
        _case("kv_lengths", kv_lengths=True, batch=3, queries=6, keys=160),
        _case("kv_lengths, causal", kv_lengths=True, causal=True, batch=3),
        _case("soft cap", soft_cap=2.0),
        _case("sinks", sinks=True, heads=4),
        _case("sinks of empty rows", sinks=True, kv_lengths=True, batch=3),
        _case("stats", stats=True, causal=True, heads=4),
        _case(
            "everything",
            kv_lengths=True,
            soft_cap=3.0,
            sinks=True,
            stats=True,
            window=60,
            scale=0.5,
            heads=4,
            batch=3,
            value_dim=5,
            positions="gaps",
            **packed,
        ),
        *_pairwise_cases(),
        _case("NaN in a segment", poison="segment", **packed),
        _case("NaN in the last key", poison="last", causal=True, queries=140, keys=140),
    )


def _pairwise_cases() -> tuple[Case, ...]:
    """Returns the cases with a bias or a mask, which vary along each axis or not."""
    return (
        _case("bias", bias="bnts", batch=3, queries=140, keys=150),
        _case("bias of all rows", bias="nts", heads=6, queries=37, keys=140),
        _case("bias of keys", bias="bs", kv_lengths=True, batch=3, heads=4, keys=140),
        _case("bias of queries", bias="bnt", soft_cap=2.0, heads=4, queries=140),
        _case("bias of heads", bias="n", sinks=True, dtype="bfloat16"),
        _case("mask", mask="bts", queries=140, keys=150),
        _case("mask of heads", mask="ns", heads=4, kv_heads=2, keys=140),
        _case("mask of empty rows", mask="bnt", queries=140, heads=4, stats=True),
        _case(
            "everything, bias and mask",
            mask="ts",
            bias="bnts",
            kv_lengths=True,
            soft_cap=3.0,
            sinks=True,
            stats=True,
            window=(60, 9),
            scale=0.5,
            heads=6,
            batch=3,
            value_dim=5,
            segments="packed",
            queries=150,
            keys=150,
        ),
        _case("NaN in masked keys", poison="mask", mask="bs", batch=3, keys=140),
    )

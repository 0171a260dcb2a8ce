# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The cases of paged attention's conformance suite (paged.py), each with the features it needs."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A batch of requests. Request r has queries[r] rows, the last of its lengths[r] keys.

    Attributes:
        name: Name for messages.
        needs: Features of the case: "prefill" (several rows of one request), "idle" (requests
            without rows, rows without a request), "window", "soft_cap", "sinks", "scale",
            "bfloat16", "float16", "mixed dtypes" (pages of another than q), "quantized pages",
            "value_width", "lse", "gradient". Without one of them a function may refuse the case.
        queries: Rows of each request.
        lengths: Keys of each request.
        heads: Query heads.
        kv_heads: Key heads.
        width: Elements of a head.
        page_size: Keys per page.
        padding: Rows behind the last request.
        dtype: Dtype of q and sinks, and of pages where `pages_dtype` is None.
        pages_dtype: Dtype of pages: another float, or "int8" or "float8_e4m3fn" for codes.
        value_width: As in `paged_attention`.
        lse: As in `paged_attention`.
        window: As in `paged_attention`.
        soft_cap: As in `paged_attention`.
        scale: As in `paged_attention`.
        sinks: Whether the call has sinks.
    """

    name: str
    needs: frozenset[str]
    queries: tuple[int, ...]
    lengths: tuple[int, ...]
    heads: int = 6
    kv_heads: int = 2
    width: int = 8
    page_size: int = 4
    padding: int = 0
    dtype: str = "float32"
    pages_dtype: str | None = None
    value_width: int | None = None
    lse: bool = False
    window: int | None = None
    soft_cap: float | None = None
    scale: float | None = None
    sinks: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Options of the call that differ from their defaults, without `sinks`."""
        names = ("window", "soft_cap", "scale", "value_width")
        named = {name: getattr(self, name) for name in names}
        given = {name: value for name, value in named.items() if value is not None}
        return given | {"lse": True} if self.lse else given


def cases() -> tuple[Case, ...]:
    """Returns every case of the suite."""
    single: dict[str, Any] = {"queries": (1,), "lengths": (9,)}
    decode: dict[str, Any] = {"queries": (1, 1, 1), "lengths": (1, 130, 5)}
    mixed: dict[str, Any] = {
        "queries": (3, 1, 0, 9, 1),
        "lengths": (7, 11, 5, 9, 300),
        "padding": 2,
    }
    both = frozenset({"prefill", "idle"})
    return (
        Case(name="decode", needs=frozenset(), **decode),
        Case(name="one request", needs=frozenset(), kv_heads=6, **single),
        Case(name="pages of 5", needs=frozenset(), page_size=5, width=5, kv_heads=1, **decode),
        Case(name="a page of all", needs=frozenset(), page_size=160, **decode),
        Case(name="chunk", needs=frozenset({"prefill"}), queries=(6, 7), lengths=(31, 7)),
        Case(name="mixed", needs=both, **mixed),
        Case(name="long prefill", needs=frozenset({"prefill"}), queries=(70, 2), lengths=(131, 2)),
        Case(name="nothing", needs=frozenset({"idle"}), queries=(0, 0), lengths=(0, 3), padding=2),
        Case(name="window", needs=both | {"window"}, window=5, **mixed),
        Case(name="window of 1", needs=frozenset({"window"}), window=1, **single),
        Case(name="wide window", needs=frozenset({"window"}), window=2**40, **single),
        Case(name="soft cap", needs=frozenset({"soft_cap"}), soft_cap=0.7, **single),
        Case(name="sinks", needs=frozenset({"sinks"}), sinks=True, **decode),
        Case(name="scale", needs=frozenset({"scale"}), scale=0.9, **single),
        Case(
            name="all options",
            needs=both | {"window", "soft_cap", "sinks", "scale"},
            **mixed,
            window=130,
            soft_cap=1.5,
            scale=-0.6,
            sinks=True,
        ),
        Case(name="lse", needs=both | {"lse"}, lse=True, **mixed),
        Case(name="lse, sinks", needs=frozenset({"lse", "sinks"}), lse=True, sinks=True, **decode),
        *_latent_cases(mixed),
        *_quantized_cases(mixed, decode),
        _mixed("bfloat16", decode),
        _mixed("float16", decode, dtype="bfloat16"),
        Case(name="bfloat16", needs=both | {"bfloat16"}, dtype="bfloat16", **mixed),
        Case(name="float16", needs=frozenset({"float16"}), dtype="float16", **decode),
        Case(name="gradient", needs=frozenset({"gradient"}), **decode),
    )


def _latent_cases(mixed: dict[str, Any]) -> tuple[Case, ...]:
    """Returns cases as of DeepSeek's attention: many heads, one wide key, its head the value."""
    needs = frozenset({"prefill", "idle", "value_width"})
    latent: dict[str, Any] = {"heads": 5, "kv_heads": 1, "width": 24, "value_width": 17, **mixed}
    return (
        Case(name="latent", needs=needs, **latent),
        Case(name="latent, lse", needs=needs | {"lse"}, lse=True, **latent),
        Case(
            name="latent, int8",
            needs=needs | {"quantized pages"},
            pages_dtype="int8",
            **latent,
        ),
    )


def _quantized_cases(mixed: dict[str, Any], decode: dict[str, Any]) -> tuple[Case, ...]:
    needs = frozenset({"quantized pages"})
    more: dict[str, Any] = {"window": 5, "soft_cap": 0.7, "sinks": True, "lse": True}
    return (
        Case(name="int8", needs=needs | {"prefill", "idle"}, pages_dtype="int8", **mixed),
        Case(name="float8", needs=needs, pages_dtype="float8_e4m3fn", **decode),
        Case(
            name="int8, bfloat16",
            needs=needs | {"bfloat16"},
            dtype="bfloat16",
            pages_dtype="int8",
            **decode,
        ),
        Case(
            name="int8, all options", needs=needs | set(more), pages_dtype="int8", **decode, **more
        ),
    )


def _mixed(pages_dtype: str, batch: dict[str, Any], *, dtype: str = "float32") -> Case:
    needs = {"mixed dtypes", pages_dtype, dtype} - {"float32"}
    name = f"{dtype} over {pages_dtype}"
    return Case(name=name, needs=frozenset(needs), dtype=dtype, pages_dtype=pages_dtype, **batch)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Computes what fits in memory before anything is allocated."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from dovetail_infer.schedule.plan import Group
from dovetail_infer.step.layout import Layout
from dovetail_infer.step.placement import Placement
from dovetail_infer.step.program import SCORE_ROWS
from dovetail_infer.types import Decoder

# Shares of free memory for the cache if the user names no bytes. An accelerator has one user; on a
# CPU the rest belongs to other programs.
ACCELERATOR_SHARE = 0.9
CPU_SHARE = 0.25
# Arrays as large as the logits that live at once: logits, changed, warped, weights, sorted and
# their copies around a conditional. Measured with `memory_analysis`, and tested.
_LOGIT_ARRAYS = 8
_ACTIVATION_ARRAYS = 8
DEFAULT_LENGTH = 4096  # tokens of a request, if the user names none and they fit


@dataclasses.dataclass(frozen=True, kw_only=True)
class GroupFit:
    """Pages of a group.

    Attributes:
        window: Window of its layers.
        pages: Number of pages.
        page_bytes: Bytes of one page in all layers of the group, on one device.
        request_pages: Largest number of pages of one request.
    """

    window: int | None
    pages: int
    page_bytes: int
    request_pages: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fit:
    """Memory of an engine, in bytes of one device. `str` gives a table.

    Attributes:
        free_bytes: Free memory before the cache, weights excluded.
        weights_bytes: Parameters.
        programs_bytes: Estimated temporary memory of the largest program.
        slots_bytes: Bias, prompt, stops and counts of all slots.
        kv_bytes: Bytes that the cache may have.
        page_size: Tokens per page.
        max_length: Largest number of tokens of a request.
        groups: Pages of each group.
    """

    free_bytes: int
    weights_bytes: int
    programs_bytes: int
    slots_bytes: int
    kv_bytes: int
    page_size: int
    max_length: int
    groups: tuple[GroupFit, ...]

    @property
    def limits(self) -> tuple[Group, ...]:
        """The groups, for `Limits`."""
        return tuple(Group(window=group.window, pages=group.pages) for group in self.groups)

    @property
    def used_bytes(self) -> int:
        """Bytes of the cache."""
        return sum(group.pages * group.page_bytes for group in self.groups)

    def __str__(self) -> str:
        rows = [
            ("free memory", self.free_bytes),
            ("weights", self.weights_bytes),
            ("programs (estimate)", self.programs_bytes),
            ("state of requests", self.slots_bytes),
            ("cache, allowed", self.kv_bytes),
            ("cache, used", self.used_bytes),
        ]
        lines = [f"{name:<22}{_mib(size):>12}" for name, size in rows]
        for group in self.groups:
            name = "pages" if group.window is None else f"pages, window {group.window}"
            held = group.pages / group.request_pages
            lines.append(
                f"{name:<22}{group.pages:>12,} of {group.page_bytes:,} bytes; "
                f"{held:.1f} requests of {self.max_length:,} tokens"
            )
        return "\n".join(lines)


def fits(
    model: Decoder,
    *,
    layout: Layout,
    page_size: int,
    step_tokens: int,
    max_rows: int,
    max_length: int,
    kv_bytes: int | None = None,
    free_bytes: int | None = None,
) -> Fit:
    """Returns the pages that fit beside weights, programs and the state of requests.

    A group with a window gets the pages that `max_rows` requests can hold, but all of these groups
    at most half of the cache. The others share the rest, up to twice the pages of `max_rows`
    requests of `max_length` tokens: the second half keeps prefixes.

    Args:
        model: The decoder. It may be abstract if `free_bytes` is given.
        layout: Its cache.
        page_size: Tokens per page.
        step_tokens: Largest number of tokens of a step.
        max_rows: Largest number of running requests.
        max_length: Largest number of tokens of a request.
        kv_bytes: Bytes of the cache on each device. None: 90 % of the free memory of an
            accelerator after programs and state, 25 % of the free memory of a CPU.
        free_bytes: Free memory. None: measured.

    Returns:
        Sizes and pages.

    Raises:
        ValueError: The cache cannot hold one request, or does not fit.
    """
    graph, state = nnx.split(model)
    leaves = jax.tree.leaves(state)
    place = Placement.of(leaves)
    placed = state if place.mesh is None else jax.tree.map(place.parameter, state)
    shardings = place.pools(graph, placed, layout)
    programs = _program_bytes(leaves, layout, step_tokens=step_tokens, max_rows=max_rows)
    slots = max_rows * layout.vocab_size * (4 + 1 + 1 + 4)
    device = next(iter(place.whole.device_set))
    free = _free_bytes(device) if free_bytes is None else free_bytes
    left = free - programs - slots
    share = CPU_SHARE if device.platform == "cpu" else ACCELERATOR_SHARE
    budget = int(max(left, 0) * share) if kv_bytes is None else kv_bytes
    page_bytes = [0] * len(layout.windows)
    for layer, sharding in zip(layout.layers, shardings, strict=True):
        shape = sharding.shard_shape((1, *layer.page_shape(page_size)))
        page_bytes[layer.group] += math.prod(shape) * layer.dtype.itemsize
    needs = [_request_pages(w, page_size, step_tokens, max_length) for w in layout.windows]
    pages = _divide(budget, layout.windows, page_bytes, needs, max_rows)
    fit = Fit(
        free_bytes=free,
        weights_bytes=sum(_device_bytes(x) for x in leaves),
        programs_bytes=programs,
        slots_bytes=slots,
        kv_bytes=budget,
        page_size=page_size,
        max_length=max_length,
        groups=tuple(
            GroupFit(window=w, pages=p, page_bytes=b, request_pages=n)
            for w, p, b, n in zip(layout.windows, pages, page_bytes, needs, strict=True)
        ),
    )
    _check(fit, left, max_rows, step_tokens)
    return fit


def fit_default(model: Any, max_length: int | None, **sizes: Any) -> Fit:
    """Returns the memory of an engine, of the largest default length that fits without one.

    Args:
        model: The decoder.
        max_length: Largest number of tokens of a request. None: the default, halved until it fits.
        **sizes: The others of `fits`.
    """
    if max_length is not None:
        return fits(model, max_length=max_length, **sizes)
    length = DEFAULT_LENGTH
    while True:
        try:
            return fits(model, max_length=length, **sizes)
        except ValueError:
            if length <= sizes["page_size"]:
                raise
            length //= 2


def _check(fit: Fit, left: int, max_rows: int, step_tokens: int) -> None:
    needed = sum(group.request_pages * group.page_bytes for group in fit.groups)
    if any(group.pages < group.request_pages for group in fit.groups):
        raise ValueError(
            f"The cache must hold one request of max_length={fit.max_length} tokens, "
            f"{_mib(needed)}, got kv_bytes={fit.kv_bytes} ({_mib(fit.kv_bytes)}) with "
            f"{_mib(fit.free_bytes)} free, {_mib(fit.programs_bytes)} for programs and "
            f"{_mib(fit.slots_bytes)} for the state of max_rows={max_rows} requests. Use a smaller "
            f"max_length, fewer max_rows, step_tokens below {step_tokens}, or kv_bytes={needed}."
        )
    if fit.used_bytes > left:
        raise ValueError(
            f"The cache must fit in free memory, got kv_bytes={fit.kv_bytes} "
            f"({_mib(fit.kv_bytes)}) with {_mib(fit.free_bytes)} free, "
            f"{_mib(fit.programs_bytes)} for programs and {_mib(fit.slots_bytes)} for the state of "
            f"max_rows={max_rows} requests. Use kv_bytes={max(left, 0)} or less."
        )


def _request_pages(window: int | None, page_size: int, step_tokens: int, max_length: int) -> int:
    """Returns the largest number of pages that one request holds in a group."""
    whole = -(-max_length // page_size)
    if window is None:
        return whole
    return min(whole, -(-(window - 1 + step_tokens) // page_size) + 1)


def _divide(
    budget: int,
    windows: Sequence[int | None],
    page_bytes: Sequence[int],
    needs: Sequence[int],
    max_rows: int,
) -> list[int]:
    """Returns the number of pages of each group.

    Args:
        budget: Bytes for all.
        windows: Window of each group.
        page_bytes: Bytes of a page of each group.
        needs: Pages of one request in each group.
        max_rows: Running requests.
    """
    windowed = [g for g, window in enumerate(windows) if window is not None]
    others = [g for g, window in enumerate(windows) if window is None]
    least = [need * size for need, size in zip(needs, page_bytes, strict=True)]
    half = budget // 2 if others else budget
    share = max(min(half, budget - sum(least[g] for g in others)), 0)
    pages = [0] * len(windows)
    for ours, copies in ((windowed, 1), (others, 2)):
        wanted = sum(max_rows * copies * least[g] for g in ours)
        needed = sum(least[g] for g in ours)
        given = min(max(share, needed), wanted)
        # Beyond one request each, in proportion to their wishes.
        fraction = (given - needed) / max(wanted - needed, 1)
        for g in ours:
            pages[g] = needs[g] + int((max_rows * copies - 1) * needs[g] * fraction)
        budget -= sum(pages[g] * page_bytes[g] for g in ours)
        share = budget
    return pages if budget >= 0 else [0] * len(windows)


def _program_bytes(
    leaves: Sequence[Any], layout: Layout, *, step_tokens: int, max_rows: int
) -> int:
    """Estimates the temporary memory of the largest program from its widest arrays."""
    widths = [d for x in leaves for d in x.shape if d != layout.vocab_size]
    rows = max(max_rows, min(SCORE_ROWS, step_tokens))
    logits = _LOGIT_ARRAYS * rows * layout.vocab_size * 4
    return logits + _ACTIVATION_ARRAYS * step_tokens * max(widths, default=1) * 4


def _device_bytes(x: Any) -> int:
    shape = x.sharding.shard_shape(x.shape) if isinstance(x, jax.Array) else x.shape
    return math.prod(shape) * x.dtype.itemsize


def _free_bytes(device: Any) -> int:
    if device.platform != "cpu":
        stats = device.memory_stats()
        if not stats:
            raise ValueError(
                f"kv_bytes must be given on a device without memory statistics, got kv_bytes=None "
                f"on {device}. Use kv_bytes=2**30, for example."
            )
        return int(stats["bytes_limit"] - stats["bytes_in_use"])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _mib(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"

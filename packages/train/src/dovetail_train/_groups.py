# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Notation of collectives in the text of a compiled program: groups of devices, bytes of results.

XLA writes the groups in four ways: as lists, as a reshaped and transposed range, by the axes of a
mesh, and as pairs of source and target. Devices are numbered as in `mesh.devices.flat`.
"""

import math
import re

import numpy as np

_ARRAY = re.compile(r"\b([a-z]+\d*)(?:e\dm\d\w*)?\[([\d,]*)\]")
_RANGE = r"\[([\d,]+)\](?:<=\[([\d,]+)\])?(?:T\(([\d,]+)\))?"
_BY_RANGE = re.compile(rf"replica_groups={_RANGE}")
_BY_AXES = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((.*?)\)(?= |,))? \{([^}]*)\}"
)
_BY_LIST = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[\d,{}]*\})?\}")


def result_bytes(text: str) -> int:
    """Returns the bytes of all arrays in the text of a type, such as "(f32[2,3]{1,0}, s32[])"."""
    arrays = [
        (int(re.sub(r"\D", "", dtype) or 8), shape.split(","))
        for dtype, shape in _ARRAY.findall(text)
    ]
    return sum(bits * math.prod(int(n) for n in shape if n) // 8 for bits, shape in arrays)


def groups(text: str, count: int) -> tuple[tuple[int, ...], ...]:
    """Returns the groups of devices that exchange data; of a permutation, source and target.

    Args:
        text: The attributes of the operation.
        count: Number of devices of the program.

    Raises:
        ValueError: The notation is not known.
    """
    if by_axes := _BY_AXES.search(text):
        return _groups_by_axes(*by_axes.groups())
    if by_range := _BY_RANGE.search(text):
        return _tuples(_range(by_range))
    if by_list := _BY_LIST.search(text):
        members = re.findall(r"\{([\d,]+)\}", by_list[1] or "")
        # No group at all is one of all devices.
        listed = tuple(tuple(map(int, group.split(","))) for group in members)
        return listed or (tuple(range(count)),)
    raise ValueError(
        f"a collective must name its groups of devices in a known notation, got {text[:300]!r}; "
        f"compile with the version of jaxlib that this package is tested with"
    )


def _groups_by_axes(axes: str, devices: str | None, over: str) -> tuple[tuple[int, ...], ...]:
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", axes)}
    order = np.arange(math.prod(sizes.values()))
    if devices is not None:
        order = _range(re.fullmatch(_RANGE, devices))
    dims, together = [], []
    for name, size in sizes.items():
        # An axis may be divided: 'x':(2)3 is the factor of size 3 after one of size 2.
        named = re.search(rf"'{name}'(?::\((\d+)\)(\d+))?", over)
        before, own = 1, size
        if named:
            together.append(len(dims) + 1)
            before, own = (int(named[1]), int(named[2])) if named[2] else (1, size)
        dims += [before, own, size // before // own]
    blocks = np.moveaxis(order.reshape(dims), together, range(-len(together), 0))
    return _tuples(blocks.reshape(-1, math.prod(dims[i] for i in together)))


def _range(match: "re.Match[str] | None") -> np.ndarray:
    """Returns `[shape]<=[sizes]T(order)`: a range of `sizes`, transposed and reshaped."""
    assert match is not None  # XLA writes it
    shape, sizes, order = (_numbers(text) for text in match.groups())
    numbers = np.arange(math.prod(sizes or shape)).reshape(sizes or shape)
    if order:
        numbers = numbers.transpose(order)
    return numbers.reshape(shape) if sizes else numbers.reshape(-1)


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def _tuples(rows: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in rows.tolist())

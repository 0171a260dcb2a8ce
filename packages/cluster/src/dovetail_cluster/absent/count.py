# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives of a compiled program, read off its text, each as often as it runs.

The text lists a collective in a loop once. The loop says how often it runs: in its backend
configuration (XLA:CPU and XLA:GPU), or in the comparison of its condition and the first value of
its counter (XLA:TPU). XLA:TPU repeats an asynchronous collective in each fusion that it overlaps
with; the start alone counts. An all-reduce and the slice of its result, in one fusion, are a
reduce-scatter. Collectives between slices are transfers of the host.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dovetail_cluster._groups import groups, result_bytes

_KINDS = (
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast",
)  # fmt: skip
# These apply arithmetic, as collectives do.
_APPLIES = ("reduce", "reduce-window", "scatter", "select-and-scatter", "sort")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*)$")
_CALLS = re.compile(r"\b(?:calls|to_apply|body|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch_computations|called_computations)=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_TARGET = re.compile(r'_xla_megascale_target="\{([\d,]+)\}x')


class Operation(NamedTuple):
    """An operation of a program: `%name = result op(rest`.

    Attributes:
        name: Its name.
        root: Its result is that of the computation.
        result: Type of the result.
        op: Such as "fusion".
        rest: Operands and attributes.
    """

    name: str
    root: bool
    result: str
    op: str
    rest: str

    def attribute(self, name: str) -> str:
        """Returns the word after `name=`, "" if there is none."""
        match = re.search(rf"\b{name}=%?([\w.\-]+)", self.rest)
        return match[1] if match else ""

    def operands(self) -> list[str]:
        """Returns the names of the operands."""
        depth = 1
        for end, letter in enumerate(self.rest):
            depth += (letter == "(") - (letter == ")")
            if depth == 0:
                return re.findall(r"%([\w.\-]+)", self.rest[:end])
        return []


class Call(NamedTuple):
    """A collective of a program.

    Attributes:
        kind: Such as "all-gather".
        times: How often it runs in one call of the program.
        result_bytes: Bytes of its results on one device, of one run.
        groups: Groups of devices, by number in their slice; pairs of a permutation.
        slices: Numbers of the slices between which it runs; () within a slice.
    """

    kind: str
    times: int
    result_bytes: int
    groups: tuple[tuple[int, ...], ...]
    slices: tuple[int, ...]


class Text:
    """The text of a compiled program, by computation.

    Attributes:
        computations: Operations of each computation, by its name.
        entry: Name of the computation that is called.
        unknown_loops: Loops with collectives whose number of rounds is not known. They count once.
    """

    def __init__(self, text: str):
        self.unknown_loops = 0
        self.computations: dict[str, list[Operation]] = {}
        self.entry = name = ""
        for line in text.splitlines():
            if head := _HEAD.match(line):
                name = head[2]
                self.computations[name] = []
                self.entry = name if head[1] else self.entry
            elif self.computations and (match := _LINE.match(line)):
                root, *words = match.groups()
                self.computations[name].append(Operation(words[0], root is not None, *words[1:]))
        self._partitions = int((re.search(r"num_partitions=(\d+)", text) or [0, 1])[1])
        self._started = {
            channel
            for operations in self.computations.values()
            if any('custom_call_target="AsyncCollectiveStart"' in o.rest for o in operations)
            for channel in map(_channel, operations)
            if channel
        }

    def collectives(self) -> list[Call]:
        """Returns the collectives, in the order of the text."""
        times: collections.Counter[str] = collections.Counter()
        self._visit(self.entry, 1, times)
        calls = []
        for name, operations in self.computations.items():
            for operation in operations if times[name] else ():
                call = self._call(operation, operations, times[name])
                calls += [] if call is None else [call]
        return calls

    def _visit(self, name: str, rounds: int, times: collections.Counter[str]) -> None:
        times[name] += rounds
        operations = self.computations.get(name, [])
        for operation in operations:
            if operation.op in ("async-update", "async-done"):
                continue  # of what async-start has called
            factor = 1
            if operation.op == "while":
                known = self.rounds(operation, operations)
                self.unknown_loops += known is None and self._talks(operation.attribute("body"))
                factor = 1 if known is None else known
            for callee in callees(operation):
                self._visit(callee, rounds * factor, times)

    def _talks(self, name: str) -> bool:
        """Tests for collectives in a computation and its callees."""
        return any(
            _kind(o) or any(map(self._talks, callees(o))) for o in self.computations.get(name, [])
        )

    def rounds(self, loop: Operation, around: Sequence[Operation]) -> int | None:
        """Returns how often a loop runs, None if the text does not say so."""
        if known := _TRIPS.search(loop.rest):
            return int(known[1])
        condition = self._inlined(loop.attribute("condition"))
        compared = [o for o in condition if o.op == "compare" and "direction=LT" in o.rest]
        limits = [value for o in condition if (value := _constant(o)) is not None]
        counters = [o.attribute("index") for o in condition if o.op == "get-tuple-element"]
        # The short form of an element: %name#index.
        counters += [index for o in condition for index in re.findall(r"%[\w.\-]+#(\d+)", o.rest)]
        if len(compared) != 1 or len(limits) != 1 or len(counters) != 1:
            return None
        by_name = {o.name: o for o in around}
        start = by_name.get((loop.operands() or [""])[0])
        if start is None or start.op != "tuple":
            return None
        first = by_name.get(start.operands()[int(counters[0])])
        while first is not None and first.op in ("copy", "bitcast"):
            first = by_name.get(first.operands()[0])
        value = None if first is None else _constant(first)
        return None if value is None else max(0, limits[0] - value)

    def _inlined(self, name: str) -> list[Operation]:
        operations = self.computations.get(name, [])
        called = [callee for operation in operations for callee in callees(operation)]
        return operations + [o for callee in called for o in self._inlined(callee)]

    def _call(self, operation: Operation, around: list[Operation], times: int) -> Call | None:
        if operation.op == "recv" and (target := _TARGET.search(operation.rest)):
            kind = re.search(r'_xla_megascale_transfer_type="(\w+)"', operation.rest)
            # Slices are numbered from 1 there.
            slices = tuple(int(number) - 1 for number in target[1].split(","))
            name = "transfer" if kind is None else kind[1].lower().replace("_", "-")
            received = elements(operation.result)[0]
            return Call(name, times, result_bytes(received), (), slices)
        kind = _kind(operation)
        if not kind or self._repeats(operation, around):
            return None
        result = operation.result
        if operation.op.endswith("-start") and kind != "all-reduce":
            result = elements(result)[1]  # the first is what is sent
        root = next((o for o in around if o.root), operation)
        if root.op == "dynamic-slice" and root.operands()[0] == operation.name:
            kind, result = "reduce-scatter", root.result  # of an all-reduce in one fusion
        return Call(kind, times, result_bytes(result), groups(operation.rest, self._partitions), ())

    def _repeats(self, operation: Operation, around: list[Operation]) -> bool:
        """Tests for an asynchronous collective of XLA:TPU after its start."""
        starts = any('custom_call_target="AsyncCollectiveStart"' in o.rest for o in around)
        return _channel(operation) in self._started and not starts


def _kind(operation: Operation) -> str:
    kind = operation.op.removesuffix("-start")
    return kind if kind in _KINDS else ""


def _channel(operation: Operation) -> str:
    return operation.attribute("channel_id") if _kind(operation) else ""


def callees(operation: Operation) -> Iterator[str]:
    """Yields the names of the computations that an operation calls."""
    if operation.op in _APPLIES or _kind(operation):
        return
    yield from _CALLS.findall(operation.rest)
    for names in _BRANCHES.findall(operation.rest):
        yield from re.findall(r"%?([\w.\-]+)", names)


def _constant(operation: Operation) -> int | None:
    value = re.match(r"(-?\d+)\)", operation.rest)
    scalar = re.match(r"[su]\d+\[\]", operation.result)
    return int(value[1]) if operation.op == "constant" and value and scalar else None


def elements(result: str) -> list[str]:
    """Returns the types of a tuple, or the type alone."""
    if not result.startswith("("):
        return [result]
    elements, depth, last = [], 0, 1
    for i, letter in enumerate(result):
        depth += (letter in "([{") - (letter in ")]}")
        if (letter == "," and depth == 1) or depth == 0:
            elements.append(result[last:i].strip())
            last = i + 1
    return elements


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traffic:
    """Collectives of one kind over the same axes.

    Attributes:
        count: How many run in one call of the program.
        bytes: Bytes of their results on one device, of all together.
        axes: Axes of the mesh along which the devices of a group differ.
        link: "ici" within a TPU slice, "nvlink" within a host of GPUs, "memory"
            within a host of CPU devices, and "dcn" beyond.
        devices: Number of devices of a group.
    """

    count: int
    bytes: int
    axes: tuple[str, ...]
    link: str
    devices: int


def traffic(
    calls: Sequence[Call], shape: Mapping[str, int], places: np.ndarray, *, near: str, local: bool
) -> dict[str, tuple[Traffic, ...]]:
    """Returns the traffic of collectives by kind, most bytes first.

    Args:
        calls: The collectives.
        shape: Sizes of the axes of the mesh, in order. Empty if there is no mesh.
        places: Slice or host of each device, as in `mesh.devices.flat`.
        near: Link within one place.
        local: The program of each place is compiled apart, so devices are numbered in their place.
    """
    sizes = tuple(shape.values()) or (len(places),)
    coordinates = np.stack(np.unravel_index(np.arange(len(places)), sizes))
    first = np.flatnonzero(places == places[0]) if local else np.arange(len(places))
    sums: collections.Counter[tuple[str, str, tuple[str, ...], int]] = collections.Counter()
    counts = sums.copy()
    for call in calls:
        if call.slices:
            members, link, size = _across(places, call.slices), "dcn", len(call.slices)
        else:
            members = first[np.array(call.groups)]
            link = near if (places[members] == places[members[:, :1]]).all() else "dcn"
            size = members.shape[1]
        differ = (coordinates[:, members] != coordinates[:, members[:, :1]]).any(axis=(1, 2))
        axes = tuple(axis for axis, moves in zip(shape, differ, strict=False) if moves)
        key = call.kind, link, axes, size
        sums[key] += call.times * call.result_bytes
        counts[key] += call.times
    kinds: dict[str, list[Traffic]] = {}
    for (kind, link, axes, size), number in sums.most_common():
        count = counts[kind, link, axes, size]
        entry = Traffic(count=count, bytes=number, axes=axes, link=link, devices=size)
        kinds.setdefault(kind, []).append(entry)
    return {kind: tuple(entries) for kind, entries in kinds.items()}


def _across(places: np.ndarray, slices: Sequence[int]) -> np.ndarray:
    """Returns groups across slices: devices with equal numbers in their slices."""
    return np.stack([np.flatnonzero(places == np.unique(places)[i]) for i in slices], axis=1)

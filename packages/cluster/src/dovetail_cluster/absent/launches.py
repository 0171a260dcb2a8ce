# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Launches of a GPU program, the bytes that they move, and where the host must wait.

All of it is read off the text that XLA:GPU compiles. A launch is an operation that becomes a
kernel or a copy: a fusion, a call of a library, a sort. A loop launches the operations of its body
in each round. A product is a launch that multiplies matrices: a call of cuBLAS, cuDNN or a kernel
of one's own, or a fusion around `dot`.

The host waits where it must read a value of the device to go on: at each round of a loop whose
number of rounds the compiler does not know, and at a conditional. Command buffers of CUDA may take
some of these waits away; the text does not show which.

A launch moves its operands and results once. Of an operand that is only sliced or gathered from,
the parts taken count, and of a result that is written into an operand's place, the part written.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dovetail_cluster._groups import result_bytes
from dovetail_cluster.absent.count import Operation, Text, callees, elements

KEPT = 8  # copies in a `Compiled`
# What becomes no kernel: names of values, control flow, and ends of what has begun before.
_FREE = (
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "conditional",
    "call", "after-all", "opt-barrier", "async-start", "partition-id", "replica-id", "domain",
    "add-dependency",
)  # fmt: skip
_MOVES = (
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "copy", "transpose",
    "reshape", "convert", "slice", "dynamic-slice", "dynamic-update-slice", "concatenate", "pad",
    "reverse", "gather", "iota", "broadcast",
)  # fmt: skip
_TAKES = ("dynamic-slice", "slice", "gather")
_RENAMES = ("bitcast", "reshape", "get-tuple-element")
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}  # and which operand is written into the first
# Libraries and kernels of their own; others, such as a radix sort, multiply nothing.
_LIBRARIES = re.compile(r'custom_call_target="[^"]*(cublas|cudnn|gemm|mosaic_gpu|triton)')
_SOURCE = re.compile(r'op_name="([^"]*)"')
_ARRAY = re.compile(r"\b[a-z]+\d*(?:e\dm\d\w*)?\[([\d,]*)\]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArrayCopy:
    """An array that a launch writes although an operand has its elements already.

    Attributes:
        result: Its type, such as "f32[4096,14336]".
        bytes: Its size.
        count: How often it is written in one call of the program.
        wider: An operand has as many elements in a narrower dtype. Otherwise the launch only moves
            elements: a copy, a transposition, a slice.
        source: The operation that JAX has traced, "" if unknown.
    """

    result: str
    bytes: int
    count: int
    wider: bool
    source: str


class Launches(NamedTuple):
    """The launches of one call of a program.

    Attributes:
        launches: Number of launches; a round of a loop of unknown length counts once.
        host_syncs: Loops of unknown length and conditionals, each as often as it is reached.
        bytes_outside_products: Bytes moved by all launches that are no products.
        widest_copies: The most bytes first, at most `KEPT`.
    """

    launches: int
    host_syncs: int
    bytes_outside_products: int
    widest_copies: tuple[ArrayCopy, ...]


def launches_of(text: Text) -> Launches:
    """Returns the launches of one call of a program of XLA:GPU."""
    number = waits = moved = 0
    copies: list[ArrayCopy] = []
    for operation, around, times in _executed(text, text.entry, 1):
        if operation.op in ("while", "conditional"):
            waits += times * (operation.op != "while" or text.rounds(operation, around) is None)
        if operation.op in _FREE or operation.op.endswith(("-update", "-done")):
            continue
        number += times
        launch = _Launch(text, operation, around)
        if not launch.product:
            moved += times * launch.bytes
            copies += launch.copies(times)
    copies.sort(key=lambda copy: -copy.bytes * copy.count)
    return Launches(number, waits, moved, tuple(copies[:KEPT]))


def _executed(
    text: Text, name: str, times: int
) -> Iterator[tuple[Operation, Sequence[Operation], int]]:
    """Yields the operations that run one by one, those around each, and how often it runs."""
    around = text.computations.get(name, [])
    for operation in around:
        yield operation, around, times
        rounds = text.rounds(operation, around) if operation.op == "while" else None
        if operation.op in ("while", "conditional", "call", "async-start"):
            for callee in callees(operation):
                yield from _executed(text, callee, times * (1 if rounds is None else rounds))


class _Launch:
    """One launch.

    Args:
        text: The program.
        operation: The operation.
        around: Operations of its computation.
    """

    def __init__(self, text: Text, operation: Operation, around: Sequence[Operation]) -> None:
        self._operation = operation = _begun(operation)
        self._inner = _fused(text, operation)
        results = {other.name: other.result for other in around}
        self._operands = [results.get(name, "") for name in operation.operands()]

    @property
    def product(self) -> bool:
        """Whether it multiplies matrices."""
        own = (self._operation, *self._inner)
        return any(o.op in ("dot", "convolution", "ragged-dot") for o in own) or (
            self._operation.op == "custom-call" and bool(_LIBRARIES.search(self._operation.rest))
        )

    @functools.cached_property
    def bytes(self) -> int:
        """Bytes read and written."""
        if not self._inner:
            return sum(map(result_bytes, (*self._operands, self._operation.result)))
        users: dict[str, list[Operation]] = {}
        for operation in self._inner:
            for name in operation.operands():
                users.setdefault(name, []).append(operation)
        read = sum(self._read(o, users) for o in self._inner if o.op == "parameter")
        return read + self._written()

    def _read(self, value: Operation, users: dict[str, list[Operation]]) -> int:
        """Bytes read of an operand: what is taken from it, if nothing else is done with it."""
        taken = 0
        for user in users.get(value.name, ()):
            first = user.operands()[0] == value.name
            if user.op in _TAKES and first:
                taken += result_bytes(user.result)
            elif user.op in _RENAMES:
                taken += self._read(user, users)
            elif not (user.op in _UPDATES and first):
                return result_bytes(value.result)
        return min(taken, result_bytes(value.result))

    def _written(self) -> int:
        by_name = {operation.name: operation for operation in self._inner}
        roots = [operation for operation in self._inner if operation.root]
        if roots and roots[0].op == "tuple":
            roots = [by_name[name] for name in roots[0].operands() if name in by_name]
        total = 0
        for root in roots:
            while root.op in _RENAMES and root.operands()[0] in by_name:
                root = by_name[root.operands()[0]]
            if root.op in _UPDATES:
                update = by_name.get(root.operands()[_UPDATES[root.op]])
                total += result_bytes(root.result if update is None else update.result)
            else:
                total += result_bytes(root.result)
        return total

    def copies(self, times: int) -> Iterator[ArrayCopy]:
        """Yields the results of which an operand has the elements."""
        moves = all(o.op in _MOVES for o in self._inner or (self._operation,))
        sizes = [(_count(operand), result_bytes(operand)) for operand in self._operands]
        source = _SOURCE.search(self._operation.rest)
        for result in elements(self._operation.result):
            count, size = _count(result), result_bytes(result)
            wider = any(number == count > 1 and held < size for number, held in sizes)
            if wider or (moves and self._operation.op != "iota" and self._operands):
                text = result.partition("{")[0]
                yield ArrayCopy(
                    result=text, bytes=size, count=times, wider=wider,
                    source="" if source is None else source[1],
                )  # fmt: skip


def _begun(operation: Operation) -> Operation:
    """Returns the operation that an asynchronous start begins, and any other as it is."""
    op = operation.op.removesuffix("-start")
    if op == operation.op or not operation.result.startswith("(("):
        return operation._replace(op=op)
    return operation._replace(op=op, result=elements(operation.result)[1])  # after the operands


def _fused(text: Text, operation: Operation) -> list[Operation]:
    """Returns the operations of a fusion, those of calls in it too."""
    if operation.op != "fusion":
        return []
    fused: list[Operation] = []
    names = [operation.attribute("calls")]
    while names:
        inner = text.computations.get(names.pop(), [])
        fused += inner
        names += [o.attribute("calls") for o in inner if o.op == "fusion"]
    return fused


def _count(result: str) -> int:
    """Returns the number of elements of an array's type."""
    match = _ARRAY.search(result)
    return math.prod(int(n) for n in match[1].split(",") if n) if match else 0

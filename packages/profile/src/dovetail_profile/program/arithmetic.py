# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Floating-point operations of instructions, one rule for each opcode.

The rules are those of XLA's `HloCostAnalysis`, so that the sum over a program equals
`cost_analysis()`: a multiply-add is two, an elementwise operation is one for each element of the
result, on integers too, and exponentials, roots and the like are counted apart.

Source: xla/service/hlo_cost_analysis.h in the OpenXLA repository.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from dovetail_profile.program.convolution import multiply_adds
from dovetail_profile.program.module import Instruction, Module
from dovetail_profile.program.shape import Shape


class Work(NamedTuple):
    """Operations on numbers.

    Attributes:
        flops: Additions, multiplications, comparisons, conversions, selections.
        transcendentals: Exponentials, logarithms, powers, roots, trigonometric functions.
    """

    flops: float = 0.0
    transcendentals: float = 0.0

    def plus(self, other: "Work") -> "Work":
        """Returns the sum."""
        return Work(self.flops + other.flops, self.transcendentals + other.transcendentals)

    def times(self, count: float) -> "Work":
        """Returns the work of `count` runs."""
        return Work(self.flops * count, self.transcendentals * count)


# Instructions whose computations run as instructions of their own.
CONTROL = frozenset({"while", "call", "conditional", "async-start"})

_ELEMENTWISE = re.findall(
    r"\S+",
    "abs add and bitcast-convert ceil clamp compare complex convert count-leading-zeros divide "
    "floor imag is-finite maximum minimum multiply negate not or popcnt real reduce-precision "
    "remainder round-nearest-afz round-nearest-even select shift-left shift-right-arithmetic "
    "shift-right-logical sign stochastic-convert subtract xor",
)
_TRANSCENDENTAL = re.findall(
    r"\S+",
    "acos acosh asin asinh atan2 atanh cbrt cosh cosine erf exponential exponential-minus-one log "
    "log-plus-one logistic power rng rng-bit-generator rsqrt sine sinh sqrt tan tanh",
)
_MOVEMENT = re.findall(
    r"\S+",
    "add-dependency after-all all-gather all-gather-done all-gather-start all-reduce-done "
    "all-to-all async-done async-update bitcast broadcast collective-broadcast collective-permute "
    "collective-permute-done collective-permute-start concatenate constant copy copy-done "
    "copy-start domain dynamic-reshape dynamic-slice dynamic-update-slice gather "
    "get-dimension-size get-tuple-element infeed iota opt-barrier optimization-barrier outfeed pad "
    "parameter partition-id ragged-all-to-all recv recv-done replica-id reshape reverse "
    "rng-get-and-update-state send send-done set-dimension-size slice transpose tuple",
)


class Arithmetic:
    """The work of the instructions of one module."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._computations: dict[int, Work | None] = {}

    def of(self, x: Instruction) -> Work | None:
        """Returns the work of one run of an instruction; None if there is no rule.

        Loops, calls and conditionals do none: the instructions in their computations do.
        """
        rule = _RULES.get(x.opcode)
        return rule(self, x) if rule else None

    def of_computation(self, number: int) -> Work | None:
        """Returns the work of one run of a computation; None if an instruction has no rule."""
        if number not in self._computations:
            self._computations[number] = self._sum(number)
        return self._computations[number]

    def shape(self, x: Instruction, operand: int) -> Shape:
        """Returns the shape of an operand."""
        return self._module.by_id[x.operands[operand]].shape

    def repeated(self, x: Instruction, runs: float, called: int = 0) -> Work | None:
        """Returns the work of a number of runs of a computation that an instruction applies."""
        work = self.of_computation(x.called[called])
        return work.times(runs) if work else None

    def _sum(self, number: int) -> Work | None:
        total = Work()
        for x in self._module.computations[number].instructions:
            works = [self.of(x)]
            if x.opcode in CONTROL:
                works += map(self.of_computation, x.called)
            for work in works:
                if work is None:
                    return None
                total = total.plus(work)
        return total


Rule = Callable[[Arithmetic, Instruction], Work | None]


def first(shape: Shape) -> Shape:
    """Returns the shape, or that of the first element of a tuple."""
    return shape.elements[0] if shape.elements else shape


def _nothing(a: Arithmetic, x: Instruction) -> Work:
    return Work()


def _elementwise(a: Arithmetic, x: Instruction) -> Work:
    return Work(flops=x.shape.size)


def _transcendental(a: Arithmetic, x: Instruction) -> Work:
    return Work(transcendentals=x.shape.size)


def _fusion(a: Arithmetic, x: Instruction) -> Work | None:
    return a.repeated(x, 1)


def _dot(a: Arithmetic, x: Instruction) -> Work:
    left, contracting = a.shape(x, 0), x.attributes.message(30).integers(1)
    return Work(2 * x.shape.size * math.prod(left.dims[i] for i in contracting))


def _ragged_dot(a: Arithmetic, x: Instruction) -> Work:
    """Counts each row once, with the matrix of its own group."""
    left, numbers = a.shape(x, 0), x.attributes.message(90)
    contracting = numbers.message(1).integers(1)
    products = x.shape.size * math.prod(left.dims[i] for i in contracting)
    if set(numbers.integers(2)) & set(contracting):  # each group has its own rows, and its result
        products //= a.shape(x, 2).dims[-1]
    return Work(2 * products)


def _convolution(a: Arithmetic, x: Instruction) -> Work:
    return Work(2 * multiply_adds(x, a.shape(x, 0), a.shape(x, 1), x.shape))


def _reduce(a: Arithmetic, x: Instruction) -> Work | None:
    return a.repeated(x, a.shape(x, 0).size - first(x.shape).size)


def _reduce_window(a: Arithmetic, x: Instruction) -> Work | None:
    result = first(x.shape)
    windows = x.attributes.message(15).messages(1)
    runs = (math.prod(w.integer(1) for w in windows) - 1) * result.size
    wide = [i for i, w in enumerate(windows) if w.integer(1) != 1]
    padded = [w for w in windows if w.integer(3) or w.integer(4)]
    if len(wide) == 1 and len(padded) == 1 and not x.shape.elements:
        w, extent = windows[wide[0]], result.dims[wide[0]]
        low, high = w.integer(3), w.integer(4)
        if low == high == extent - 1 and low and w.integer(1) == 2 * low + 1:
            runs = result.size // extent + extent - 1  # each result is the sum of the whole axis
    return a.repeated(x, runs)


def _select_and_scatter(a: Arithmetic, x: Instruction) -> Work | None:
    source = a.shape(x, 1).size
    window = math.prod(w.integer(1) for w in x.attributes.message(15).messages(1))
    select, scatter = a.repeated(x, source * (window - 1)), a.repeated(x, source, 1)
    return select.plus(scatter) if select and scatter else None


def _scatter(a: Arithmetic, x: Instruction) -> Work | None:
    return a.repeated(x, a.shape(x, len(x.operands) // 2 + 1).size)


def _map(a: Arithmetic, x: Instruction) -> Work | None:
    return a.repeated(x, x.shape.size)


def _sort(a: Arithmetic, x: Instruction) -> Work:
    size = a.shape(x, 0).size
    return Work(size * max(size - 1, 0).bit_length())  # log2, rounded up


def _fft(a: Arithmetic, x: Instruction) -> Work:
    factors = math.prod(n.bit_length() - 1 for n in x.attributes.integers(32))
    return Work(8 * factors * a.shape(x, 0).size)  # a complex multiplication is 8


def _cholesky(a: Arithmetic, x: Instruction) -> Work:
    matrix = a.shape(x, 0)
    return Work(matrix.dims[-1] * matrix.size // 3)


def _triangular_solve(a: Arithmetic, x: Instruction) -> Work:
    return Work(2 * a.shape(x, 0).dims[-1] * a.shape(x, 1).size)


def _reduce_scatter(a: Arithmetic, x: Instruction) -> Work:
    """Counts the additions of a device; XLA counts none."""
    return Work(sum(a.shape(x, i).size for i in range(len(x.operands))) - x.shape.size)


_RULES: Mapping[str, Rule] = (
    dict.fromkeys(_MOVEMENT, _nothing)
    | dict.fromkeys(CONTROL, _nothing)
    | dict.fromkeys(_ELEMENTWISE, _elementwise)
    | dict.fromkeys(_TRANSCENDENTAL, _transcendental)
    | dict.fromkeys(("dot", "scaled-dot"), _dot)
    # As if two devices added their values.
    | dict.fromkeys(("all-reduce", "all-reduce-start"), _elementwise)
    | {
        "fusion": _fusion,
        "ragged-dot": _ragged_dot,
        "convolution": _convolution,
        "reduce": _reduce,
        "reduce-window": _reduce_window,
        "select-and-scatter": _select_and_scatter,
        "scatter": _scatter,
        "map": _map,
        "sort": _sort,
        "fft": _fft,
        "cholesky": _cholesky,
        "triangular-solve": _triangular_solve,
        "reduce-scatter": _reduce_scatter,
    }
)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Floating-point operations of instructions, one rule for each opcode.

The sum over a program equals `cost_analysis()`. A multiply-add is two, an elementwise operation one
per element of the result, on integers too. Transcendental functions count apart.

Source of the rules: xla/service/hlo_cost_analysis.h in the OpenXLA repository.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from dovetail_profile.program.convolution import multiply_adds
from dovetail_profile.program.module import Instruction, Module
from dovetail_profile.program.shape import Shape


def opcodes(text: str) -> frozenset[str]:
    """Returns the words of a text."""
    return frozenset(text.split())


# Instructions whose computations run as instructions of their own.
CONTROL = frozenset({"while", "call", "conditional", "async-start"})

_ELEMENTWISE = opcodes(
    "abs add and bitcast-convert ceil clamp compare complex convert count-leading-zeros divide "
    "floor imag is-finite maximum minimum multiply negate not or popcnt real reduce-precision "
    "remainder round-nearest-afz round-nearest-even select shift-left shift-right-arithmetic "
    "shift-right-logical sign stochastic-convert subtract xor"
) | {"all-reduce", "all-reduce-start"}  # as if two devices added their values
_TRANSCENDENTAL = opcodes(
    "acos acosh asin asinh atan2 atanh cbrt cosh cosine erf exponential exponential-minus-one "
    "log log-plus-one logistic power rng rng-bit-generator rsqrt sine sinh sqrt tan tanh"
)
_MOVEMENT = opcodes(
    "add-dependency after-all all-gather all-gather-done all-gather-start all-reduce-done "
    "all-to-all async-done async-update bitcast broadcast collective-broadcast "
    "collective-permute collective-permute-done collective-permute-start concatenate constant "
    "copy copy-done copy-start domain dynamic-reshape dynamic-slice dynamic-update-slice gather "
    "get-dimension-size get-tuple-element infeed iota opt-barrier optimization-barrier outfeed "
    "pad parameter partition-id ragged-all-to-all recv recv-done replica-id reshape reverse "
    "rng-get-and-update-state send send-done set-dimension-size slice transpose tuple"
)


class Work(NamedTuple):
    """Operations on numbers.

    Attributes:
        flops: Additions, multiplications, comparisons, conversions, selections.
        transcendentals: Exponentials, logarithms, powers, roots, trigonometric functions.
    """

    flops: float = 0.0
    transcendentals: float = 0.0


class Arithmetic:
    """The work of the instructions of one module."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._computations: dict[int, Work | None] = {}

    def of(self, x: Instruction) -> Work | None:
        """Returns the work of one run of an instruction; None without a rule.

        Loops, calls and conditionals have none; the instructions in their computations have it.
        """
        opcode = x.opcode
        if opcode in _MOVEMENT or opcode in CONTROL:
            return Work()
        if opcode in _ELEMENTWISE:
            return Work(float(x.shape.size))
        if opcode in _TRANSCENDENTAL:
            return Work(0.0, float(x.shape.size))
        if rule := _RULES.get(opcode):
            return Work(float(rule(x, self._operands(x))))
        if runs := _RUNS.get(opcode):
            works = (self.of_computation(number) for number in x.called)
            return _sum(zip(runs(x, self._operands(x)), works, strict=True))
        return None

    def of_computation(self, number: int) -> Work | None:
        """Returns the work of one run of a computation; None if a rule is missing."""
        if number not in self._computations:
            works: list[tuple[int, Work | None]] = []
            for x in self._module.computations[number].instructions:
                works.append((1, self.of(x)))
                if x.opcode in CONTROL:
                    works += [(1, self.of_computation(called)) for called in x.called]
            self._computations[number] = _sum(works)
        return self._computations[number]

    def _operands(self, x: Instruction) -> list[Shape]:
        return [self._module.by_id[i].shape for i in x.operands]


def _sum(works: Iterable[tuple[int, Work | None]]) -> Work | None:
    flops = transcendentals = 0.0
    for runs, work in works:
        if work is None:
            return None
        flops += runs * work.flops
        transcendentals += runs * work.transcendentals
    return Work(flops, transcendentals)


def _dot(x: Instruction, operands: list[Shape]) -> int:
    contracting = x.attributes.message(30).integers(1)
    return 2 * x.shape.size * math.prod(operands[0].dims[i] for i in contracting)


def _ragged_dot(x: Instruction, operands: list[Shape]) -> int:
    """Counts each row once, with the matrix of its group."""
    numbers = x.attributes.message(90)
    contracting = numbers.message(1).integers(1)
    flops = 2 * x.shape.size * math.prod(operands[0].dims[i] for i in contracting)
    grouped = set(numbers.integers(2)) & set(contracting)  # each group has a result of its rows
    return flops // operands[2].dims[-1] if grouped else flops


def _reduce_window(x: Instruction, operands: list[Shape]) -> tuple[int, ...]:
    result = x.shape.first
    windows = x.attributes.message(15).messages(1)
    wide = [i for i, w in enumerate(windows) if w.integer(1) != 1]
    padded = [w for w in windows if w.integer(3) or w.integer(4)]
    if len(wide) == 1 and len(padded) == 1 and not x.shape.elements:
        w, extent = windows[wide[0]], result.dims[wide[0]]
        low, high = w.integer(3), w.integer(4)
        if low == high == extent - 1 and low and w.integer(1) == 2 * low + 1:
            return (result.size // extent + extent - 1,)  # each is the sum of the whole axis
    return ((math.prod(w.integer(1) for w in windows) - 1) * result.size,)


def _select_and_scatter(x: Instruction, operands: list[Shape]) -> tuple[int, ...]:
    window = math.prod(w.integer(1) for w in x.attributes.message(15).messages(1))
    return operands[1].size * (window - 1), operands[1].size


# FLOPs of an instruction, from the shapes of its operands.
_RULES: Mapping[str, Callable[[Instruction, list[Shape]], int]] = {
    "cholesky": lambda x, operands: operands[0].dims[-1] * operands[0].size // 3,
    "convolution": lambda x, operands: 2 * multiply_adds(x, operands[0], operands[1], x.shape),
    "dot": _dot,
    # A complex multiplication is 8.
    "fft": lambda x, operands: (
        8 * operands[0].size * math.prod(n.bit_length() - 1 for n in x.attributes.integers(32))
    ),
    "ragged-dot": _ragged_dot,
    # Of one device; XLA counts none.
    "reduce-scatter": lambda x, operands: sum(s.size for s in operands) - x.shape.size,
    "scaled-dot": _dot,
    # Comparisons: n log2(n), rounded up.
    "sort": lambda x, operands: operands[0].size * max(operands[0].size - 1, 0).bit_length(),
    "triangular-solve": lambda x, operands: 2 * operands[0].dims[-1] * operands[1].size,
}

# Runs of each computation that an instruction applies.
_RUNS: Mapping[str, Callable[[Instruction, list[Shape]], tuple[int, ...]]] = {
    "fusion": lambda x, operands: (1,),
    "map": lambda x, operands: (x.shape.size,),
    "reduce": lambda x, operands: (operands[0].size - x.shape.first.size,),
    "reduce-window": _reduce_window,
    "scatter": lambda x, operands: (operands[-1].size,),
    "select-and-scatter": _select_and_scatter,
}

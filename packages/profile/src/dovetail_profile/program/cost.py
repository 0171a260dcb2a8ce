# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Costs of instructions: floating-point operations and bytes, from the HLO alone."""

import functools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from dovetail_profile.program import custom_calls, loops
from dovetail_profile.program.arithmetic import CONTROL, Arithmetic
from dovetail_profile.program.module import Instruction, Module
from dovetail_profile.program.run_cost import Cost
from dovetail_profile.program.traffic import Traffic

__all__ = ["Cost", "Costs", "Executions", "Loops"]

Loops = Literal["once", "counted"]


class Executions(NamedTuple):
    """Runs of a computation in one run of the program.

    Attributes:
        runs: The number of runs.
        exact: False if a loop around it has unknown rounds, counted as one, or if it is a branch.
    """

    runs: int
    exact: bool


class Costs:
    """The costs of the instructions of one module, on one of its devices."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._arithmetic, self._traffic = Arithmetic(module), Traffic(module)
        self._costs: dict[int, Cost] = {}
        self._trips: dict[int, int | None] = {}

    def of(self, instruction: Instruction) -> Cost:
        """Returns the cost of one run of an instruction's own work.

        Of a fusion: of its body. Of a loop, call or conditional: nothing, since the instructions
        in their computations run by themselves.
        """
        if instruction.id not in self._costs:
            self._costs[instruction.id] = self._cost(instruction)
        return self._costs[instruction.id]

    def trips(self, loop: Instruction) -> int | None:
        """Returns the rounds of a `while`; None if they depend on values."""
        if loop.id not in self._trips:
            self._trips[loop.id] = loops.trips(self._module, loop)
        return self._trips[loop.id]

    @functools.cached_property
    def executions(self) -> Mapping[int, Executions]:
        """Runs of each computation whose instructions run by themselves, by its number."""
        counts: dict[int, int] = defaultdict(int)
        exact: dict[int, bool] = defaultdict(lambda: True)
        counts[self._module.entry.id] = 1
        for number in reversed(tuple(self._module.computations)):  # callers before callees
            for x in self._module.computations[number].instructions if counts[number] else ():
                trips = self.trips(x) if x.opcode == "while" else None
                known = x.opcode not in ("while", "conditional") or trips is not None
                for called, runs in self._called(x, trips):
                    counts[called] += counts[number] * runs
                    exact[called] &= exact[number] and known
        return {number: Executions(n, exact[number]) for number, n in counts.items() if n}

    @functools.cached_property
    def unknown(self) -> Counter[str]:
        """Instructions without a FLOP count: by opcode, custom calls by their target."""
        return Counter(
            custom_calls.target(x) if x.opcode == "custom-call" else x.opcode
            for number in self.executions
            for x in self._module.computations[number].instructions
            if self.of(x).flops is None
        )

    def total(self, loops: Loops = "counted") -> Cost:
        """Returns the cost of one run of the program, without what is in `unknown`.

        Of the branches of a conditional, the largest of each number counts.

        Args:
            loops: "counted" multiplies by the rounds of loops, where they are known. "once" counts
                each body once, as `cost_analysis()` does.
        """
        return Cost(*self._total(self._module.entry.id, loops, {}))

    def _cost(self, x: Instruction) -> Cost:
        if x.opcode == "custom-call":
            operands = [self._module.by_id[i].shape for i in x.operands]
            return custom_calls.cost_of(x, operands)
        work = self._arithmetic.of(x)
        if work is None:
            moved = self._traffic.of(x) if x.opcode == "fusion" else None
            return Cost(None, moved, None)
        return Cost(work.flops, self._traffic.of(x), work.transcendentals)

    def _called(self, x: Instruction, trips: int | None) -> Iterator[tuple[int, int]]:
        """Yields the computations that run as a part of an instruction, and how often."""
        if x.opcode == "while":
            body, condition = x.called
            rounds = 1 if trips is None else trips
            yield body, rounds
            yield condition, 1 if trips is None else trips + 1
        elif x.opcode in CONTROL:
            for called in x.called:
                yield called, 1

    def _total(
        self, number: int, loops: Loops, totals: dict[int, tuple[float, float, float]]
    ) -> tuple[float, float, float]:
        if number in totals:
            return totals[number]
        flops = moved = transcendentals = 0.0
        for x in self._module.computations[number].instructions:
            cost = self.of(x)
            flops += cost.flops or 0
            moved += cost.bytes or 0
            transcendentals += cost.transcendentals or 0
            trips = self.trips(x) if x.opcode == "while" and loops == "counted" else None
            inner = [
                tuple(runs * n for n in self._total(called, loops, totals))
                for called, runs in self._called(x, trips)
            ]
            if inner:
                join = max if x.opcode == "conditional" else sum
                more = [join(numbers) for numbers in zip(*inner, strict=True)]
                flops, moved = flops + more[0], moved + more[1]
                transcendentals += more[2]
        totals[number] = flops, moved, transcendentals
        return totals[number]

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Costs of instructions: FLOPs and bytes, from the HLO alone."""

import dataclasses
import functools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

import numpy as np

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

    def of(self, instruction: Instruction) -> Cost:
        """Returns the cost of one run of an instruction, of a fusion that of its body.

        Loops, calls and conditionals cost nothing: their bodies' instructions run by themselves.
        """
        if instruction.id not in self._costs:
            self._costs[instruction.id] = self._cost(instruction)
        return self._costs[instruction.id]

    def trips(self, loop: Instruction) -> int | None:
        """Returns the rounds of a `while`; None if they depend on values."""
        return loops.trips(self._module, loop)

    @functools.cached_property
    def executions(self) -> Mapping[int, Executions]:
        """Runs of computations, by number. Bodies of fusions and reductions have none."""
        counts: dict[int, int] = defaultdict(int)
        exact: dict[int, bool] = defaultdict(lambda: True)
        counts[self._module.entry.id] = 1
        for number in reversed(tuple(self._module.computations)):  # callers before callees
            for x in self._module.computations[number].instructions if counts[number] else ():
                for called, runs, known in self._called(x):
                    counts[called] += counts[number] * runs
                    exact[called] &= exact[number] and known
        return {number: Executions(n, exact[number]) for number, n in counts.items() if n}

    @functools.cached_property
    def unknown(self) -> Counter[str]:
        """Instructions without a FLOP count, by opcode, custom calls by target."""
        return Counter(
            custom_calls.target(x) if x.opcode == "custom-call" else x.opcode
            for number in self.executions
            for x in self._module.computations[number].instructions
            if self.of(x).flops is None
        )

    def total(self, loops: Loops = "counted") -> Cost:
        """Returns the cost of one run of the program. Unknown costs count as zero.

        Of the branches of a conditional, the largest of each number counts.

        Args:
            loops: "counted" multiplies by known rounds of loops. "once" counts each body once, as
                `cost_analysis()` does.
        """
        totals: dict[int, np.ndarray] = {}
        for number, computation in self._module.computations.items():  # callees before callers
            totals[number] = np.zeros(3)
            for x in computation.instructions:
                totals[number] += [n or 0 for n in dataclasses.astuple(self.of(x))]
                inner = [
                    totals[called] * (runs if loops == "counted" else 1)
                    for called, runs, _ in self._called(x)
                ]
                if inner:
                    join = np.max if x.opcode == "conditional" else np.sum
                    totals[number] += join(inner, axis=0)
        return Cost(*totals[self._module.entry.id].tolist())

    def _cost(self, x: Instruction) -> Cost:
        if x.opcode == "custom-call":
            operands = [self._module.by_id[i].shape for i in x.operands]
            return custom_calls.cost_of(x, operands)
        work = self._arithmetic.of(x)
        if work is None:
            moved = self._traffic.of(x) if x.opcode == "fusion" else None
            return Cost(None, moved, None)
        return Cost(work.flops, self._traffic.of(x), work.transcendentals)

    def _called(self, x: Instruction) -> Iterator[tuple[int, int, bool]]:
        """Yields computations of an instruction, their runs, and whether these are exact."""
        if x.opcode == "while":
            trips = self.trips(x)
            body, condition = x.called
            yield body, 1 if trips is None else trips, trips is not None
            yield condition, 1 if trips is None else trips + 1, trips is not None
        elif x.opcode in CONTROL:
            for called in x.called:
                yield called, 1, x.opcode != "conditional"

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Costs of a compiled program, without a run."""

import dataclasses
from typing import TYPE_CHECKING

from dovetail_profile._compat import module_of_compiled
from dovetail_profile.program.cost import Cost, Costs, Loops
from dovetail_profile.table import Table
from dovetail_profile.tables.work import scaled

if TYPE_CHECKING:
    import jax

_NOTHING = Cost(0.0, 0.0, 0.0)


@dataclasses.dataclass(frozen=True)
class CostRow:
    """The cost of an instruction in one run of the program, on one device.

    Attributes:
        instruction, opcode: As in HLO's text.
        source, scope: File and line, and module path.
        executions: Runs of the instruction: the product of the rounds of the loops around it.
        exact: False in a loop of unknown rounds, counted as one, and in a branch of a conditional.
        flops, bytes: FLOPs and bytes moved in all runs; None without a rule.
        transcendentals: Exponentials, logarithms, roots and the like; None likewise.
        intensity: FLOPs per byte; None likewise, or if no bytes move.
    """

    instruction: str
    opcode: str
    source: str
    scope: str
    executions: int
    exact: bool
    flops: float | None
    bytes: float | None
    transcendentals: float | None
    intensity: float | None


def costs(compiled: "jax.stages.Compiled", *, loops: Loops = "counted") -> Table[CostRow]:
    """Returns FLOPs and bytes of the instructions of a compiled program, the most FLOPs first.

    They come from the optimized HLO; the devices may be absent. Instructions without any cost have
    no row.

    Args:
        compiled: From `jax.jit(f).lower(...).compile()`.
        loops: "counted" multiplies by the known rounds of loops. "once" counts the body of a loop
            once, as `compiled.cost_analysis()` does.

    Returns:
        A row for each instruction. The notes name opcodes without a FLOP count.

    Raises:
        TypeError: `compiled` is no compiled program.
        ValueError: `loops` has another value.

    Example:

        >>> import jax, jax.numpy as jnp
        >>> from dovetail_profile import costs
        >>> x = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        >>> costs(jax.jit(lambda x: x @ x).lower(x).compile())[0].flops
        524288.0
    """
    if loops not in ("once", "counted"):
        raise ValueError(f"loops must be 'once' or 'counted', got {loops!r}")
    module = module_of_compiled(compiled)
    counter = Costs(module)
    rows = []
    for number, (runs, exact) in counter.executions.items():
        for x in module.computations[number].instructions:
            cost = counter.of(x)
            if cost == _NOTHING:
                continue
            count = runs if loops == "counted" else 1
            rows.append(
                CostRow(
                    instruction=x.name,
                    opcode=x.opcode,
                    source=str(module.source(x) or ""),
                    scope=x.scope,
                    executions=count,
                    exact=exact,
                    flops=scaled(cost.flops, count),
                    bytes=scaled(cost.bytes, count),
                    transcendentals=scaled(cost.transcendentals, count),
                    intensity=cost.intensity,
                )
            )
    rows.sort(key=lambda row: (-(row.flops or 0), -(row.bytes or 0)))
    notes = [f"{n} x {name}: no FLOP count" for name, n in sorted(counter.unknown.items())]
    if not all(row.exact for row in rows):
        notes.append("rows that are not exact: loops of unknown rounds count once, and each branch")
    return Table(CostRow, tuple(rows), tuple(notes))

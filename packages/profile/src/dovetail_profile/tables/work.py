# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The runs of each instruction, summed: the figures that several tables group."""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from dovetail_profile.program.cost import Costs
from dovetail_profile.program.frames import Frame
from dovetail_profile.program.module import Instruction, Module
from dovetail_profile.tables.category import category_of
from dovetail_profile.trace.recording import Recording


@dataclasses.dataclass(frozen=True)
class Work:
    """All runs of one instruction on the devices of one host.

    Attributes:
        host: The index of the host.
        program: The number of the program.
        name: The instruction, as the trace names it.
        module: The program; None if the trace lacks it.
        instruction: The instruction; None if the program has none of the name.
        frame: Its line of source.
        scope: Its module path.
        category: See `category_of`; "other" if unknown.
        calls: Number of runs.
        self_ps: Time of all runs without what they contain.
        flops: Floating-point operations of all runs; None if there is no rule.
        bytes: Bytes that all runs read and write; None if there is no rule.
    """

    host: int
    program: int
    name: str
    module: Module | None
    instruction: Instruction | None
    frame: Frame | None
    scope: str
    category: str
    calls: int
    self_ps: int
    flops: float | None
    bytes: float | None

    @property
    def opcode(self) -> str:
        """The opcode, or "?"."""
        return self.instruction.opcode if self.instruction else "?"

    @property
    def program_name(self) -> str:
        """The name of the program, or "?"."""
        return self.module.name if self.module else "?"


def work_of(recording: Recording) -> list[Work]:
    """Returns the work of a recording, in no particular order. No run is left out."""
    runs = recording.operations
    if not len(runs):
        return []
    names = len(runs.names)
    programs, place = distinct(runs.program)
    keys, place = distinct((runs.host * len(programs) + place) * names + runs.code)
    events = np.bincount(place)
    # Sums of floats are exact below 2**53 ps: two and a half hours for each instruction.
    times = np.bincount(place, weights=runs.self_ps).astype(np.int64)
    groups: dict[tuple[int, int], dict[str, tuple[int, int]]] = {}
    for k, n, ps in zip(keys.tolist(), events.tolist(), times.tolist(), strict=True):
        host, rest = divmod(k, len(programs) * names)
        group = groups.setdefault((host, int(programs[rest // names])), {})
        group[runs.names[rest % names]] = n, ps
    return [
        work
        for (host, program), group in groups.items()
        for work in _works(host, program, recording.modules.get((host, program)), group)
    ]


def _works(
    host: int, program: int, module: Module | None, seen: Mapping[str, tuple[int, int]]
) -> Iterator[Work]:
    """Yields the work of a program from the events and the time of each name."""
    costs, calls = (Costs(module), _calls(module, seen)) if module else (None, {})
    for name, (events, self_ps) in seen.items():
        instruction = module.instructions.get(name) if module else None
        empty = Work(
            host, program, name, module, None, None, "", "other", events, self_ps, None, None
        )
        if module is None or costs is None or instruction is None:
            yield empty
            continue
        cost, count = costs.of(instruction), calls[name]
        yield dataclasses.replace(
            empty,
            instruction=instruction,
            frame=module.source(instruction),
            scope=module.scope(instruction),
            category=category_of(module, instruction),
            calls=count,
            flops=None if cost.flops is None else cost.flops * count,
            bytes=None if cost.bytes is None else cost.bytes * count,
        )


def _calls(module: Module, seen: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Returns the runs of each instruction.

    A run can have several events: a sort on a CPU copies its operand first, under the same name.
    All instructions of a computation run equally often; the commonest number of events tells how.
    """
    calls: dict[str, int] = {}
    for computation in module.computations.values():
        events = {x.name: seen[x.name][0] for x in computation.instructions if x.name in seen}
        usual = max(
            Counter(sorted(events.values())).items(), key=lambda item: item[1], default=(1, 0)
        )[0]
        calls |= {name: n // max(1, n // usual) for name, n in events.items()}
    return calls


def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the different values in order, and the place of each value among them.

    Values that lie close together, as ours do, are counted without a sort.
    """
    low = int(values.min())
    size = int(values.max()) - low + 1
    if size > 8 * len(values):
        return np.unique(values, return_inverse=True)
    seen = np.zeros(size, bool)
    seen[values - low] = True
    return np.flatnonzero(seen) + low, (np.cumsum(seen) - 1)[values - low]


def total(values: Iterable[float | None]) -> float | None:
    """Returns the sum; None if a value is unknown."""
    known = list(values)
    return None if None in known else math.fsum(v for v in known if v is not None)


def unjoined(works: Sequence[Work]) -> tuple[str, ...]:
    """Returns a note on the time whose instruction is unknown, if there is any."""
    busy = sum(work.self_ps for work in works)
    lost = sum(work.self_ps for work in works if work.instruction is None)
    if not any(work.instruction is None for work in works):
        return ()
    return (
        f"{lost / max(busy, 1):.1%} of the time belongs to instructions that no program in the "
        f'trace has; their opcode is "?".',
    )

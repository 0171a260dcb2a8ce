# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The runs of each instruction, summed. Several tables group these sums."""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from dovetail_profile.program.cost import Costs
from dovetail_profile.program.frames import Frame
from dovetail_profile.program.module import Instruction, Module
from dovetail_profile.tables.category import category_of
from dovetail_profile.trace.recording import Recording

NO_SCOPE = "(no scope)"  # the row of instructions without a module path

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


@dataclasses.dataclass(frozen=True)
class Work:
    """All runs of one instruction on the devices of one host.

    Attributes:
        host, program: Their numbers, as in `Recording.modules`.
        name: Name of the instruction in the trace.
        module: The program; None if the trace lacks it.
        instruction: The instruction; None if the program has none of the name.
        frame, scope: Its line of source and module path.
        category: See `category_of`; "other" if unknown.
        calls: Number of runs.
        self_ps: Time of all runs, without nested ones.
        flops, bytes: FLOPs and bytes moved in all runs; None without a rule.
    """

    host: int
    program: int
    name: str
    module: Module | None
    calls: int
    self_ps: int
    instruction: Instruction | None = None
    frame: Frame | None = None
    scope: str = ""
    category: str = "other"
    flops: float | None = None
    bytes: float | None = None

    @property
    def opcode(self) -> str:
        """The opcode; "?" if unknown."""
        return self.instruction.opcode if self.instruction else "?"

    @property
    def program_name(self) -> str:
        """The name of the program; "?" if unknown."""
        return self.module.name if self.module else "?"


def work_of(recording: Recording) -> list[Work]:
    """Returns the work of all runs of a recording, in no particular order."""
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
        count = calls.get(name, events)
        work = Work(host, program, name, module, count, self_ps)
        if module and costs and instruction:
            cost = costs.of(instruction)
            work = dataclasses.replace(
                work,
                instruction=instruction,
                frame=module.source(instruction),
                scope=module.scope(instruction),
                category=category_of(module, instruction),
                flops=scaled(cost.flops, count),
                bytes=scaled(cost.bytes, count),
            )
        yield work


def _calls(module: Module, seen: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Returns the runs of each instruction.

    A run can have several events: a sort on a CPU copies its operand first, under the same name.
    All instructions of a computation run equally often: as often as the commonest number of events.
    """
    calls: dict[str, int] = {}
    for computation in module.computations.values():
        events = {x.name: seen[x.name][0] for x in computation.instructions if x.name in seen}
        for usual, _ in Counter(sorted(events.values())).most_common(1):
            calls |= {name: n // max(1, n // usual) for name, n in events.items()}
    return calls


def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the different values in order, and the place of each value among them.

    Values close together are counted without a sort.
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


def scaled(value: float | None, factor: int | float) -> float | None:
    """Returns the product; None if the value is unknown."""
    return None if value is None else value * factor


def ratio(value: int | float | None, divisor: int | float | None) -> float | None:
    """Returns the quotient; None if a side is unknown or the divisor is 0."""
    return value / divisor if value is not None and divisor else None


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Returns the items of each key, in their order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def unjoined(works: Sequence[Work]) -> tuple[str, ...]:
    """Returns a note on the time of unknown instructions, if there are any."""
    lost = [work.self_ps for work in works if work.instruction is None]
    if not lost:
        return ()
    share = sum(lost) / max(sum(work.self_ps for work in works), 1)
    return (
        f"{share:.1%} of the time belongs to instructions that no program in the "
        f'trace has; their opcode is "?".',
    )

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Programs that a trace lacks, from the executables that are alive in the process.

XLA's CPU client puts a program into the trace if it compiled it, and not if the program came from
JAX's persistent cache. Such a program still knows its HLO, which is added to the trace file as one
more plane. Messages of Protocol Buffers may be joined, so it stays a file that any reader reads.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from dovetail_profile._compat import live_modules
from dovetail_profile.program.module import module_of
from dovetail_profile.trace.recording import Recording

_PLANE, _STAT = b"/host:metadata", b"Hlo Proto"


def add_live_programs(trace: Path, recording: Recording) -> bool:
    """Adds the programs that ran and are missing. Returns whether there were any.

    Args:
        trace: The file of a trace of this process.
        recording: What it has so far.
    """
    missing = dict(_missing(recording))
    if not missing:
        return False
    protos = {_field(1, hlo) + _field(3, buffers) for hlo, buffers in live_modules()}
    alive = {proto: module_of(proto) for proto in protos}
    kinds = b""
    for program, (name, instructions) in missing.items():
        same = [
            proto
            for proto, module in alive.items()
            if module.name == name and instructions <= module.instructions.keys()
        ]
        if len(same) == 1:  # of those that look alike it could be any
            kinds += _kind(program, name, same[0])
    if kinds:
        name = _field(5, _number(1, 1) + _field(2, _number(1, 1) + _field(2, _STAT)))
        with trace.open("ab") as file:
            file.write(_field(1, _field(2, _PLANE) + kinds + name))
    return bool(kinds)


def _missing(recording: Recording) -> Iterator[tuple[int, tuple[str, frozenset[str]]]]:
    """Yields number, name and instructions of programs that ran and are not in the trace."""
    runs, names = recording.operations, _names(recording)
    for program in np.unique(runs.program).tolist():
        if program in names and (0, program) not in recording.modules:
            codes = np.unique(runs.code[runs.program == program]).tolist()
            yield program, (names[program], frozenset(runs.names[code] for code in codes))


def _names(recording: Recording) -> Mapping[int, str]:
    """Returns names of programs by their numbers, as events of a CPU have them."""
    names: dict[int, str] = {}
    plane = recording.spaces[0].plane("/host:CPU")
    for line in plane.lines if plane else ():
        module, program = line.stats("hlo_module"), line.stats("program_id")
        numbers = program.of_each(len(line))[module.owner]
        for number, code in set(zip(numbers.tolist(), module.value.tolist(), strict=True)):
            names[number] = module.texts[code]
    return names


def _kind(program: int, name: str, hlo: bytes) -> bytes:
    """Returns a kind of events that is a program: as the profiler writes them."""
    stat = _number(1, 1) + _field(6, hlo)
    kind = _number(1, program) + _field(2, name.encode()) + _field(5, stat)
    return _field(4, _number(1, program) + _field(2, kind))


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    data = b""
    while value > 0x7F:
        data, value = data + bytes([value & 0x7F | 0x80]), value >> 7
    return data + bytes([value])

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Programs from JAX's persistent cache, added to traces on CPUs.

XLA's CPU client traces a program only if it compiled it. An executable from the cache still has its
HLO, as long as it is alive. Messages of Protocol Buffers may be joined: appended to a trace file,
one more plane leaves a file for any reader.
"""

from collections.abc import Iterator
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
        recording: Its content so far.
    """
    missing = list(_missing(recording))
    if not missing:
        return False
    protos = {_field(1, hlo) + _field(3, buffers) for hlo, buffers in live_modules()}
    alive = {proto: module_of(proto) for proto in protos}
    kinds = b""
    for program, name, instructions in missing:
        same = [
            proto
            for proto, module in alive.items()
            if module.name == name and instructions <= module.instructions.keys()
        ]
        if len(same) == 1:  # else it could be any of them
            stat = _number(1, 1) + _field(6, same[0])
            kind = _number(1, program) + _field(2, name.encode()) + _field(5, stat)
            kinds += _field(4, _number(1, program) + _field(2, kind))
    if kinds:
        stats = _field(5, _number(1, 1) + _field(2, _number(1, 1) + _field(2, _STAT)))
        with trace.open("ab") as file:
            file.write(_field(1, _field(2, _PLANE) + kinds + stats))
    return bool(kinds)


def _missing(recording: Recording) -> Iterator[tuple[int, str, set[str]]]:
    """Yields number, name and instructions of programs that ran and are not in the trace."""
    runs, names = recording.operations, _names(recording)
    for program in np.unique(runs.program).tolist():
        if program in names and (0, program) not in recording.modules:
            codes = np.unique(runs.code[runs.program == program]).tolist()
            yield program, names[program], {runs.names[code] for code in codes}


def _names(recording: Recording) -> dict[int, str]:
    """Returns the names of programs by number, from the events of a CPU."""
    names: dict[int, str] = {}
    plane = recording.spaces[0].plane("/host:CPU")
    for line in plane.lines if plane else ():
        module, program = line.stats("hlo_module"), line.stats("program_id")
        numbers = program.of_each(len(line))[module.owner]
        for number, code in set(zip(numbers.tolist(), module.value.tolist(), strict=True)):
            names[number] = module.texts[code]
    return names


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    data = b""
    while value > 0x7F:
        data, value = data + bytes([value & 0x7F | 0x80]), value >> 7
    return data + bytes([value])

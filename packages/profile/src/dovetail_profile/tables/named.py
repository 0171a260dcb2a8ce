# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Search for a program or an instruction by name."""

import difflib
from collections.abc import Iterable

from dovetail_profile.program.module import Module
from dovetail_profile.trace.recording import Recording


def no_such(thing: str, name: str, names: Iterable[str]) -> str:
    """Returns the text of a KeyError, with up to ten valid names, the nearest first.

    Args:
        thing: Noun for the error: "a program".
        name: The unknown name.
        names: The valid names.
    """
    known = sorted(set(names))
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.4)
    shown = [*near, *(other for other in known if other not in near)][:10]
    more = f" and {len(known) - len(shown)} more" if len(known) > len(shown) else ""
    return f"{thing} must be one of {', '.join(shown) or 'none'}{more}, got {name!r}"


def program_named(recording: Recording, name: str) -> tuple[Module, tuple[str, ...]]:
    """Returns the program of a name, of several the last to start, with a note in that case.

    Args:
        recording: The trace.
        name: XLA's name, "jit_train_step", or the function's: "train_step".

    Raises:
        KeyError: There is no such program.
    """
    modules = recording.modules
    keys = [key for key, x in modules.items() if name in (x.name, x.name.removeprefix("jit_"))]
    if not keys:
        raise KeyError(no_such("a program", name, (x.name for x in modules.values())))
    if len(keys) == 1:
        return modules[keys[0]], ()
    runs = recording.operations

    def last(key: tuple[int, int]) -> tuple[int, int]:
        starts = runs.start_ps[(runs.host == key[0]) & (runs.program == key[1])]
        return int(starts.max(initial=-1)), key[1]

    newest = max(keys, key=last)
    note = f"{len(keys)} programs are named {name!r}: this is number {newest[1]}, the last to run."
    return modules[newest], (note,)

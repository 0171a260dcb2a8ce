# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Finding a program or an instruction by its name."""

import difflib
from collections.abc import Iterable

from dovetail_profile.program.module import Module
from dovetail_profile.trace.recording import Recording


def no_such(thing: str, name: str, names: Iterable[str]) -> str:
    """Returns the text of a KeyError: names that exist, the nearest first, at most ten.

    Args:
        thing: Words for what has a name.
        name: The name that was asked for.
        names: Names that exist.
    """
    known = sorted(set(names))
    near = difflib.get_close_matches(name, known, n=5, cutoff=0.4)
    shown = [*near, *(other for other in known if other not in near)][:10]
    more = f" and {len(known) - len(shown)} more" if len(known) > len(shown) else ""
    return f"{thing} must be one of {', '.join(shown) or 'none'}{more}, got {name!r}"


def program_named(recording: Recording, name: str) -> tuple[Module, tuple[str, ...]]:
    """Returns the program with a name, and notes: of several, the one that began to run last.

    Args:
        recording: The trace.
        name: As XLA has it, "jit_train_step", or the function's: "train_step".

    Raises:
        KeyError: There is no such program. The text has those that there are.
    """
    modules = recording.modules
    keys = [key for key, x in modules.items() if name in (x.name, x.name.removeprefix("jit_"))]
    if not keys:
        raise KeyError(no_such("a program", name, (x.name for x in modules.values())))
    runs = recording.operations
    last = {
        (host, program): start
        for start, host, program in sorted(
            set(zip(runs.start_ps.tolist(), runs.host.tolist(), runs.program.tolist(), strict=True))
        )
    }
    newest = max(keys, key=lambda key: (last.get(key, -1), key[1]))
    if len(keys) == 1:
        return modules[newest], ()
    several = (
        f"{len(keys)} programs are named {name!r}: this is number {newest[1]}, the last to run."
    )
    return modules[newest], (several,)

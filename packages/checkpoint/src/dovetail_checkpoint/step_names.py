# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Names of step directories: `10`, and those that Orbax writes with a prefix or a fixed length.

    10              Store, and Orbax as it comes
    ckpt_10         CheckpointManagerOptions(step_prefix="ckpt")
    00000010        CheckpointManagerOptions(step_format_fixed_length=8)

A Store writes the first form. It reads the others as steps of plain Orbax.
"""

import re
from pathlib import Path

from dovetail_checkpoint import _compat

PLAIN = re.compile(r"0|[1-9][0-9]*")
_ORBAX = re.compile(r"(?:.+_)?([0-9]+)")


def number(directory: Path) -> int | None:
    """Returns the number of a step directory; None if the directory is no step."""
    if PLAIN.fullmatch(directory.name):
        return int(directory.name)
    match = _ORBAX.fullmatch(directory.name)
    return int(match[1]) if match and _compat.is_checkpoint(directory) else None


def listed(root: Path) -> list[tuple[int, Path]]:
    """Returns all step directories in `root` with their numbers, oldest first."""
    if not root.is_dir():
        return []
    numbered = ((number(path), path) for path in sorted(root.iterdir()) if path.is_dir())
    return sorted((step, path) for step, path in numbered if step is not None)


def directories(root: Path) -> dict[int, Path]:
    """Returns the committed steps of a run by number, oldest first; none without a root.

    A directory named by its number alone goes before another one of the same number.

    Raises:
        ValueError: Two others have the same number.
    """
    plain, others = {}, {}
    for step, path in listed(root):
        if PLAIN.fullmatch(path.name):
            plain[step] = path
        elif others.setdefault(step, path) != path:
            raise ValueError(
                f"the steps in a root must have different numbers, got {others[step].name} and "
                f"{path.name} in {root}; move those of one prefix to a root of their own"
            )
    return dict(sorted({**others, **plain}.items()))

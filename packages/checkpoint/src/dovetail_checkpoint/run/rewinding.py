# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rewinding of a run: later steps are set aside, so that the next launch begins at an earlier one.

The newest step is renamed first. After an interruption the steps that are left are still those of
one run, and the same call does the rest.
"""

import logging
from pathlib import Path

import jax

from dovetail_checkpoint import _elsewhere
from dovetail_checkpoint.proof import agree
from dovetail_checkpoint.run.retention import REWOUND_SUFFIX, set_aside
from dovetail_checkpoint.run.steps import check_number, committed_steps, is_ours, step_directory
from dovetail_checkpoint.run.writer import writer_of

_logger = logging.getLogger(__name__)


@_elsewhere.call
@jax.transfer_guard("allow")
def rewind(root: str | Path, step: int) -> list[Path]:
    """Renames all steps after `step`: `restore` then begins at `step`, and their numbers are free.

    The renamed steps stay on disk and `load` reads them. Delete them once nobody needs them. All
    processes of a run make the call.

    Args:
        root: Directory of the run.
        step: Number of a saved step.

    Returns:
        The new paths, newest step first.

    Raises:
        ValueError: `step` was not saved, or plain Orbax wrote a later step.
        RuntimeError: Another process writes to the root.

    Example:

        >>> from dovetail_checkpoint import Store
        >>> with Store("run") as store:
        ...     for step in (10, 20, 30):
        ...         store.save(step, model={"w": step})
        >>> [path.name for path in rewind("run", 10)]
        ['30.dovetail-rewound-0', '20.dovetail-rewound-0']
        >>> Store("run").restore(model={"w": 0})
        (10, {'model': {'w': 10}})
    """
    root = Path(root).absolute()
    check_number(step)
    names: list[str] = []
    error: Exception | None = None
    if agree.is_primary():
        try:
            names = _set_aside(root, step)
        except (OSError, ValueError, RuntimeError) as raised:
            error = raised
    agree.raise_together(error)
    paths = [root / name for name in agree.gather(names)[0]]
    if paths:
        _logger.warning("%s: later steps were set aside: %s", root, [path.name for path in paths])
    return paths


def _set_aside(root: Path, step: int) -> list[str]:
    saved = committed_steps(root)
    if step not in saved:
        raise ValueError(
            f"step must be one that was saved, got step={step} where {root} has {saved or 'none'}; "
            "use the newest of these before the steps to give up"
        )
    later = [number for number in reversed(saved) if number > step]
    if others := [number for number in later if not is_ours(step_directory(root, number))]:
        raise ValueError(
            f"steps to set aside must be those of a Store, got step={step} before steps {others} "
            f"that plain Orbax wrote to {root}; move those to another directory first"
        )
    if not later:
        return []
    user = _User()
    writer = writer_of(root)
    writer.enter(user)
    try:
        writer.lock.hold()
        return [set_aside(root, number, suffix=REWOUND_SUFFIX).name for number in later]
    finally:
        writer.leave(user)


class _User:
    """Uses the writer of a root, as a store does."""

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A launch on one of many hosts: the function that a cluster calls on each of them.

A refusal, such as text without a held-out part or a loss that is not finite, is an answer: another
start would give it again, so the job ends. Any other exception is a failure, and the cluster
decides.
"""

import logging
import re
from pathlib import Path
from typing import Any

from dovetail_cluster import Context
from dovetail_stack import training
from dovetail_stack._command import FAILED, exit_code_of
from dovetail_stack.processes import make_mesh
from dovetail_stack.settings import axes_of
from dovetail_stack.supervision import Supervision
from dovetail_train import BadStep

_OF_XLA = re.compile(r"[A-Z_]+: ")  # such as "UNKNOWN: Gloo ...", a ValueError for a lost rank


class FinalError(RuntimeError):
    """The message and the exit code of a refusal.

    Attributes:
        exit_code: The exit code of the command.
        final: Another start would refuse again; the cluster reads it.
    """

    final = True

    def __init__(self, message: str, exit_code: int = FAILED) -> None:  # unpickled by its message
        super().__init__(message)
        self.exit_code = exit_code


def rank(
    context: Context,
    values: dict[str, Any],
    out: Path,
    command: list[str],
    changes: dict[str, Any],
    phase_s: float,
) -> None:
    """Makes a launch on a host. Every rank calls it.

    Args:
        context: The rank.
        values: Parsed options by name.
        out: Directory of the run.
        command: Arguments of the command `dovetail`.
        changes: Settings that a rewind has changed; see `dovetail_runs.Run.launch`.
        phase_s: Deadline of an evaluation or an export, in seconds.

    Raises:
        FinalError: The launch was refused.
    """
    _set_log(context.rank, debug="debug" in values)
    try:
        mesh = make_mesh(axes_of(values), dcn=values.get("dcn"), use_all=True)
        training.launch(
            values,
            out,
            mesh=mesh,
            command=command,
            changes=changes if context.generation == 0 else {},
            supervision=Supervision(context, phase_s),
        )
    except Exception as error:
        refusal = _refusal(error)
        if refusal is None:
            raise
        raise refusal from error


def _set_log(rank: int, *, debug: bool) -> None:
    """Logs what the command would log on one host, and once for all ranks."""
    logging.basicConfig(format="%(levelname)s: %(message)s", force=True)
    if rank > 0:  # the trainer's warnings are the same on each
        logging.getLogger("dovetail_train").setLevel(logging.ERROR)
    if not debug:  # as `_command.answering`: the raised error has it all
        for noisy in ("absl", "asyncio"):
            logging.getLogger(noisy).setLevel(logging.CRITICAL)


def _refusal(error: Exception) -> FinalError | None:
    """Returns the refusal for an error that another start would give again, or None."""
    answers = isinstance(error, ValueError | ImportError | BadStep) or hasattr(error, "exit_code")
    if not answers or _OF_XLA.match(str(error)):
        return None
    message = "\n".join([str(error), *getattr(error, "__notes__", ())])
    return FinalError(message, exit_code_of(error))

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Write, inspect and verify corpora; budget a run over them.

The command `python -m dovetail_data` with a progress bar.
"""

import argparse
import functools

from dovetail_data.command.cli import add_arguments as add
from dovetail_data.command.cli import run as run_action
from dovetail_stack.progress import Writing

__all__ = ["add", "run"]


def run(args: argparse.Namespace) -> int:
    """Runs the action; returns its exit code."""
    with Writing() as bars:
        # `out` is what `write` has; the other actions show no progress.
        name = str(getattr(args, "out", ""))
        return run_action(args, progress=functools.partial(bars, name))

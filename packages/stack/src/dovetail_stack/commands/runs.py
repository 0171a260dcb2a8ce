# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""List the training runs in a directory, show one, or compare several.

The command `python -m dovetail_runs`. It reads files of the runs only, touches no device, and a run
may still be running.
"""

import argparse

from dovetail_runs.command.cli import add_arguments, run

__all__ = ["add", "run"]


def add(parser: argparse.ArgumentParser) -> None:
    """Declares the library's own arguments."""
    add_arguments(parser)

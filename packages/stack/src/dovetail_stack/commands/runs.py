# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""List the training runs in a directory, show one, or compare several.

The command `python -m dovetail_runs`. It reads files of the runs only, touches no device, and a run
may still be running.
"""

from dovetail_runs.command.cli import add_arguments as add
from dovetail_runs.command.cli import run

__all__ = ["add", "run"]

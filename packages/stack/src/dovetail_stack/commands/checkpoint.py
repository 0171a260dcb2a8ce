# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Look into checkpoints, compare, verify and convert them.

The command `python -m dovetail_checkpoint`, with a progress bar.
"""

import argparse

from dovetail_stack.progress import Bytes


def add(parser: argparse.ArgumentParser) -> None:
    """Declares the library's own arguments."""
    from dovetail_checkpoint.cli import add_arguments

    add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Runs the action; returns its exit code."""
    import jax

    from dovetail_checkpoint.cli import run as run_action

    # All is read to the host: an accelerator would be taken from the run that is looked into.
    jax.config.update("jax_platforms", "cpu")
    with Bytes(args.action) as bar:
        return run_action(args, progress=bar)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Look into checkpoints, compare, verify and convert them.

The command `python -m dovetail_checkpoint` with a progress bar. Every PATH may be a run of
`dovetail train`: RUN means its checkpoints, RUN/10 its step 10. diff and convert take the newest
step of a run, and its parameters unless --item names another tree.
"""

import argparse
import sys
from pathlib import Path

from dovetail_checkpoint.cli import add_arguments as add
from dovetail_checkpoint.cli import run as run_action
from dovetail_stack.model_directory import RUN_FILE
from dovetail_stack.progress import Bytes
from dovetail_stack.recipes.options import CHECKPOINTS

__all__ = ["add", "run"]
PARAMETERS = "params"  # the tree of a step that diff and convert take


def run(args: argparse.Namespace) -> int:
    """Runs the action; returns its exit code."""
    import jax

    for name in ("path", "a", "b"):
        if name in args:
            one_step = args.action in ("diff", "convert")
            tree = PARAMETERS if one_step and args.item is None else ""
            setattr(args, name, checkpoints(getattr(args, name), one_step=one_step, tree=tree))
    # All is read to the host: an accelerator would be taken from the run that is looked into.
    jax.config.update("jax_platforms", "cpu")
    with Bytes(args.action) as bar:
        return run_action(args, progress=bar)


def checkpoints(path: Path, *, one_step: bool, tree: str = "") -> Path:
    """Returns the checkpoint path of a run of `dovetail train`; other paths unchanged.

    Args:
        path: Path as typed.
        one_step: Take the newest step of a run.
        tree: Tree of that step; empty for all.

    Raises:
        ValueError: The run has no checkpoint yet.
    """
    root = next((p for p in (path, *path.parents) if (p / RUN_FILE).is_file()), None)
    if root is None or (path != root and path.exists()):
        return path
    steps = [p for p in (root / CHECKPOINTS).glob("*") if p.name.isdecimal()]
    if not steps:
        raise ValueError(
            f"a run must have saved a step, got {str(root)!r} with none: wait for the first one"
        )
    if path != root:
        return root / CHECKPOINTS / path.relative_to(root)
    if not one_step:
        return root / CHECKPOINTS
    newest = max(steps, key=lambda p: int(p.name)) / tree
    print(f"{path}: {newest}", file=sys.stderr)
    return newest

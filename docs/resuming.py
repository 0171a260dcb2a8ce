# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The contract of a resume as a table, written from its rules when the documentation is built."""

from pathlib import Path

from dovetail_train.resume.contract import RULES

PAGE = Path(__file__).resolve().parent / "packages/measured/resuming.md"  # git ignores it
OPENING = """# Resuming

Every checkpoint has a description of its run: the settings of the trainer, the functions and
numbers in optimizer, loss and guard, and the names and shapes of all arrays. `Trainer.fit` compares
it with the run to resume before it reads an array. The verdict on a change is one of four:

- *free*: it holds without a word.
- *logged*: it holds from the restored step on. One warning of the logger `dovetail_train` has each
  value before and after.
- *converted*: it adds or drops arrays. `fit(..., resume="convert")` keeps the arrays of equal name,
  shape and dtype, makes the others, and names them in one warning.
- *refused*: `ValueError`, with the code to write instead.

Functions are compared by name and by the values that they hold: closures, defaults, partials,
dataclasses, attributes, and numbers of their module. A body that changed under one name is logged.
Objects that cannot be described compare equal, and a debug line says so. A store without `peek` is
asked for the item `description` alone; if it cannot read one item, nothing is compared, and one
warning says so. So it is with checkpoints of versions before this table.

| entry | change | verdict | effect, or code to write |
|---|---|---|---|
"""


def write() -> None:
    """Writes the page, with a row for each rule."""
    rows = (f"| {r.entry} | {r.change} | {r.verdict} | {r.advice} |\n" for r in RULES)
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(OPENING + "".join(rows), encoding="utf-8")

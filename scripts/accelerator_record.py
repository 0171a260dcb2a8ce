# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What became of the steps of an accelerator session, kept for the next call."""

import json
import os
import sys
from pathlib import Path
from typing import Any

FINISHED = ("done", "failed", "timed out")


class Unusable(Exception):
    """A state file or a Python that the session cannot use."""


class Record:
    """What became of each step, kept in a file if one is given.

    Args:
        file: JSON; written after each step, whole or not at all.
        conditions: `platform`, `device` and `tiny`; a file of other ones is refused.
    """

    def __init__(self, file: Path | None, conditions: dict[str, Any]) -> None:
        self._file, self._conditions = file, conditions
        self.steps: dict[str, dict[str, Any]] = {}
        if file is None:
            return
        if file.exists():
            self.steps = self._read(file)
        try:
            self._write()
        except OSError as error:
            raise Unusable(
                f"--state must name a file that can be written, got {file}: {error.strerror}. "
                "Name a file in a folder of yours."
            ) from error

    def add(self, name: str, entry: dict[str, Any]) -> None:
        """Adds a step that ended. A full disk loses the entry, not the session."""
        self.steps[name] = entry
        try:
            self._write()
        except OSError as error:
            text = f"{self._file} could not be written ({error.strerror}): {name} will run again"
            print(text, file=sys.stderr, flush=True)

    def _read(self, file: Path) -> dict[str, dict[str, Any]]:
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            steps = found.pop("steps")
            if any(entry["outcome"] not in FINISHED for entry in steps.values()):
                raise ValueError("an outcome of another command")
        except OSError as error:
            raise Unusable(f"--state {file} cannot be read: {error.strerror}.") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Unusable(
                f"--state must name a file that this command wrote, got {file}, which is damaged "
                "or something else. Delete it to begin again, or name another."
            ) from error
        if found != self._conditions:
            raise Unusable(
                f"--state must be of the same device and shapes, got {file} of {found}, and here "
                f"is {self._conditions}. Name another file."
            )
        return steps

    def _write(self) -> None:
        if self._file is None:
            return
        text = json.dumps({**self._conditions, "steps": self.steps}, indent=1)
        new = self._file.with_name(self._file.name + ".new")
        new.write_text(text + "\n", encoding="utf-8")
        os.replace(new, self._file)

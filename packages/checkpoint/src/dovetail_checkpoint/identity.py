# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The identity of steps: a step says its number and its run, and a directory must agree.

Digests prove that a directory holds what was written; they do not say which step it is. A renamed,
copied, swapped or symlinked directory would restore as another step. The manifest therefore has the
step's number and the identity of the run: random, made by the first save in a root, and kept in
`dovetail-run.json` beside the steps, where every later launch of the run finds it.

A copy of the whole root is the same run, and so is a root of steps copied without that file: the
first save takes over the identity that most of the steps have. Steps saved into another root after
a restore belong to the run of that root. `load(path)` takes a step wherever it lies: a copy outside
of a run is legitimate under any name, and one among the steps of a run is only logged.
"""

import json
import logging
import os
import secrets
from collections import Counter
from pathlib import Path

from dovetail_checkpoint import _compat, checksums, step_names
from dovetail_checkpoint._durable import write_file
from dovetail_checkpoint.manifest import (
    MANIFEST_ITEM,
    DamagedManifestError,
    Identity,
    decode,
    json_sha256,
)
from dovetail_checkpoint.report import IDENTITY, Problem

_logger = logging.getLogger(__name__)
RUN_FILE = "dovetail-run.json"


def of_root(root: Path) -> tuple[str | None, list[Problem]]:
    """Returns the run of a root, or None if no step states one, and a problem if its file is bad.

    Without the file, it is the run of most of the steps, and of the oldest if several have as many.
    """
    problems = []
    try:
        content = (root / RUN_FILE).read_bytes()
        run = json.loads(content)["run"]
        if isinstance(run, str) and content == _content(run):
            return run, []
        problems = [Problem(where=RUN_FILE, reason="does not have the sha256 that it states")]
    except FileNotFoundError:
        pass
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        problems = [Problem(where=RUN_FILE, reason=f"cannot be read ({error!r:.300})")]
    stated = [of_step(path) for _, path in step_names.listed(root)]
    known = [identity.run for identity in stated if identity is not None]
    return (Counter(known).most_common(1)[0][0] if known else None), problems


def begin(root: Path) -> str:
    """Returns the run of a root that is to be written; makes it, and its file, if there is none."""
    run, problems = of_root(root)
    if run is not None and not problems and (root / RUN_FILE).exists():
        return run
    for problem in problems:
        _logger.warning("%s: %s; it is written again", root, problem)
    run = run or secrets.token_hex(16)
    write_file(root / RUN_FILE, _content(run))
    return run


def of_step(directory: Path) -> Identity | None:
    """Returns the identity in the manifest of a step; None without one, or if it is damaged."""
    try:
        return decode(_compat.load_document(directory, MANIFEST_ITEM)).identity
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, DamagedManifestError):
        return None


def misplaced(root: Path, run: str | None) -> set[int]:
    """Returns the numbers of the directories that hold other steps."""
    directories = step_names.directories(root)
    return {step for step, path in directories.items() if problems(path, of_step(path), run)}


def problems(directory: Path, identity: Identity | None, run: str | None) -> list[Problem]:
    """Compares a step of a run with its directory.

    Args:
        directory: The step.
        identity: The step and the run in its manifest; None if it states none.
        run: The run of its root, if known.

    Returns:
        One problem, or none.
    """
    step = step_names.number(directory)
    if identity is None or step is None:
        return []
    return [Problem(where=IDENTITY, reason=reason) for reason in _disagreement(step, identity, run)]


def note(directory: Path, identity: Identity | None) -> str | None:
    """Returns the difference if a directory lies among the steps of a run and is another one.

    A copy elsewhere is legitimate under any name: only a root with its file is a run for certain.
    """
    if not (directory.parent / RUN_FILE).is_file():
        return None
    differences = problems(directory, identity, of_root(directory.parent)[0])
    return differences[0].reason if differences else None


def is_ours(directory: Path) -> bool:
    """Whether a Store wrote the directory, even if files of it are lost or damaged."""
    if os.path.isdir(directory / MANIFEST_ITEM) or checksums.exists(directory):
        return True
    try:
        return MANIFEST_ITEM in _compat.item_names(directory)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def _disagreement(step: int, identity: Identity, run: str | None) -> list[str]:
    if step != identity.step:
        return [
            f"its manifest says step {identity.step}: the directory was renamed, copied, swapped "
            "or linked"
        ]
    if run not in (None, identity.run):
        return [f"its manifest says run {identity.run}, but the run here is {run}"]
    return []


def _content(run: str) -> bytes:
    body = {"run": run}
    return (json.dumps({**body, "sha256": json_sha256(body)}) + "\n").encode()

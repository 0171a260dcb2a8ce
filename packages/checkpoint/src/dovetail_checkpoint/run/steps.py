# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The steps of a run on disk: the names, the identity and the description of their directories.

    10              Store, and Orbax as it comes
    ckpt_10         CheckpointManagerOptions(step_prefix="ckpt")
    00000010        CheckpointManagerOptions(step_format_fixed_length=8)

A Store writes the first form. It reads the others as steps of plain Orbax.

A step says its number and its run, and its directory must agree. Digests prove that a directory
holds what was written; they do not say which step it is. A renamed, copied, swapped or symlinked
directory would restore as another step. The manifest therefore has the step's number and the
identity of the run: random, made by the first save in a root, and kept in `dovetail-run.json`
beside the steps, where every later launch of the run finds it.

A copy of the whole root is the same run, and so is a root of steps copied without that file: the
first save takes over the identity that most of the steps have. Steps saved into another root after
a restore belong to the run of that root. `load(path)` takes a step wherever it lies: a copy outside
of a run is legitimate under any name, and one among the steps of a run is only logged.
"""

import json
import logging
import os
import re
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dovetail_checkpoint import _compat
from dovetail_checkpoint._durable import write_file
from dovetail_checkpoint.proof import agree, checksums
from dovetail_checkpoint.proof.manifest import (
    MANIFEST_ITEM,
    DamagedManifestError,
    Identity,
    decode,
    json_sha256,
)
from dovetail_checkpoint.proof.report import IDENTITY, Problem
from dovetail_checkpoint.run import metrics

_logger = logging.getLogger(__name__)
RUN_FILE = "dovetail-run.json"
PLAIN = re.compile(r"0|[1-9][0-9]*")
_ORBAX = re.compile(r"(?:.+_)?([0-9]+)")


@dataclass(frozen=True, kw_only=True)
class SavedStep:
    """A committed step on disk.

    Attributes:
        step: Its number.
        items: Names of its items; empty if its metadata is lost.
        bytes: Size of all files.
        has_checksums: Whether its files have checksums.
        metrics: Numbers by name.
        identity: The step and the run in its manifest; None in steps of older versions and of plain
            Orbax.
        misplaced: The difference if the manifest states another step or run; `restore` refuses it.
    """

    step: int
    items: tuple[str, ...]
    bytes: int
    has_checksums: bool
    metrics: Mapping[str, float | int] = field(default_factory=dict)
    identity: Identity | None = None
    misplaced: str | None = None


def step_number(directory: Path) -> int | None:
    """Returns the number of a step directory; None if the directory is no step."""
    if PLAIN.fullmatch(directory.name):
        return int(directory.name)
    match = _ORBAX.fullmatch(directory.name)
    return int(match[1]) if match and _compat.is_checkpoint(directory) else None


def step_paths(root: Path) -> list[tuple[int, Path]]:
    """Returns all step directories in `root` with their numbers, oldest first."""
    if not root.is_dir():
        return []
    numbered = ((step_number(path), path) for path in sorted(root.iterdir()) if path.is_dir())
    return sorted((step, path) for step, path in numbered if step is not None)


def step_directories(root: Path) -> dict[int, Path]:
    """Returns the committed steps of a run by number, oldest first; none without a root.

    A directory named by its number alone goes before another one of the same number.

    Raises:
        ValueError: Two others have the same number.
    """
    plain, others = {}, {}
    for step, path in step_paths(root):
        if PLAIN.fullmatch(path.name):
            plain[step] = path
        elif others.setdefault(step, path) != path:
            raise ValueError(
                f"the steps in a root must have different numbers, got {others[step].name} and "
                f"{path.name} in {root}; move those of one prefix to a root of their own"
            )
    return dict(sorted({**others, **plain}.items()))


def check_number(step: int) -> None:
    """Raises ValueError unless `step` can be the number of a step."""
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(
            f"step must be an int from 0 on, got step={step!r}; use int(step) of the loop's counter"
        )


def check_root(root: Path) -> None:
    """Raises ValueError if Orbax would read the path of a run as a pattern, and lose its arrays."""
    if any(character in "*?[" for character in str(root)):
        raise ValueError(
            "the path of a run must have none of the characters *, ? and [, which Orbax reads as a "
            f"pattern, got {str(root)!r}; rename the directory"
        )


def step_directory(root: Path, step: int) -> Path:
    """Returns `root/STEP`, or the directory of plain Orbax for a step that only it wrote."""
    own = root / str(step)
    return own if own.is_dir() else step_directories(root).get(step, own)


def committed_steps(root: Path) -> list[int]:
    """Returns the numbers of the committed steps, oldest first; none without a root."""
    return list(step_directories(root))


def other_step(committed: Sequence[int]) -> str:
    """Returns the call to write if a step was never saved."""
    if not committed:
        return "leave step out: restore returns None until a step is saved"
    return f"use step={committed[-1]}, or leave step out for the newest that is intact"


def was_deleted(directory: Path) -> bool:
    """True if any process sees that the step is gone. A collective."""
    return not all(agree.gather(directory.is_dir()))


def missing(path: Path) -> str:
    """Returns the end of a message about a path without checkpoint, with the steps beside it."""
    if path.is_dir():
        return ", which holds none; give a run, one of its steps, or safetensors files"
    steps = committed_steps(path.parent)
    if not steps:
        return ", which does not exist; give an existing run or step"
    newest = step_directory(path.parent, steps[-1])
    return f", which does not exist; {path.parent} has the steps {steps}: give {newest}"


def describe_step(root: Path, step: int) -> SavedStep:
    """Describes one step on disk. Reads no array."""
    return describe_directory(step_directory(root, step), step)


def describe_directory(directory: Path, step: int) -> SavedStep:
    """Describes the step in a directory. Reads no array."""
    stated = identity_of(directory)
    try:
        items = _compat.item_names(directory)
    except (OSError, ValueError, LookupError, TypeError):
        items = []
    return SavedStep(
        step=step,
        items=tuple(name for name in items if name not in (MANIFEST_ITEM, _compat.METRICS_ITEM)),
        bytes=sum(file_sizes(directory)),
        has_checksums=checksums.exists(directory),
        metrics=metrics.read(directory),
        identity=stated,
        misplaced=misplacement(directory, stated),
    )


def described_steps(root: Path) -> list[SavedStep]:
    """Returns the committed steps, oldest first, without those that a running save deletes
    meanwhile.
    """
    described = [describe_step(root, step) for step in committed_steps(root)]
    return [step for step in described if step_directory(root, step.step).is_dir()]


def file_sizes(directory: Path) -> list[int]:
    """Returns the bytes of each file of a step, without those that are renamed or deleted
    meanwhile, such as SHA256SUMS.
    """
    sizes = []
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):  # renamed or deleted meanwhile
                sizes.append(os.stat(os.path.join(folder, name)).st_size)
    return sizes


def run_of_root(root: Path) -> tuple[str | None, list[Problem]]:
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
        pass  # the steps state it
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        problems = [Problem(where=RUN_FILE, reason=f"cannot be read ({error!r:.300})")]
    stated = [identity_of(path) for _, path in step_paths(root)]
    known = [identity.run for identity in stated if identity is not None]
    return (Counter(known).most_common(1)[0][0] if known else None), problems


def begin_run(root: Path) -> str:
    """Returns the run of a root that is to be written; makes it, and its file, if there is none."""
    run, problems = run_of_root(root)
    if run is not None and not problems and (root / RUN_FILE).exists():
        return run
    for problem in problems:
        _logger.warning("%s: %s; it is written again", root, problem)
    run = run or secrets.token_hex(16)
    write_file(root / RUN_FILE, _content(run))
    return run


def identity_of(directory: Path) -> Identity | None:
    """Returns the identity in the manifest of a step; None without one, or if it is damaged."""
    try:
        return decode(_compat.load_document(directory, MANIFEST_ITEM)).identity
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, DamagedManifestError):
        return None


def misplaced_steps(root: Path, run: str | None) -> set[int]:
    """Returns the numbers of the directories that hold other steps."""
    directories = step_directories(root)
    return {
        step
        for step, path in directories.items()
        if identity_problems(path, identity_of(path), run)
    }


def identity_problems(directory: Path, identity: Identity | None, run: str | None) -> list[Problem]:
    """Compares a step of a run with its directory.

    Args:
        directory: The step.
        identity: The step and the run in its manifest; None if it states none.
        run: The run of its root, if known.

    Returns:
        One problem, or none.
    """
    step = step_number(directory)
    if identity is None or step is None:
        return []
    return [Problem(where=IDENTITY, reason=reason) for reason in _disagreement(step, identity, run)]


def misplacement(directory: Path, identity: Identity | None) -> str | None:
    """Returns the difference if a directory lies among the steps of a run and is another one.

    A copy elsewhere is legitimate under any name: only a root with its file is a run for certain.
    """
    if not (directory.parent / RUN_FILE).is_file():
        return None
    differences = identity_problems(directory, identity, run_of_root(directory.parent)[0])
    return differences[0].reason if differences else None


def is_ours(directory: Path) -> bool:
    """True if a Store wrote the directory, even if files of it are lost or damaged."""
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


def agreed_run(root: Path) -> str:
    """Returns the identity of the run, as process 0 reads it. A collective."""
    run = agree.gather(run_of_root(root)[0])[0]
    assert run is not None, "the first process wrote it"
    return run

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Full verification of a path, a group of leaves at a time."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import jax

from dovetail_checkpoint import _compat, _elsewhere
from dovetail_checkpoint.layout import mapping
from dovetail_checkpoint.layout.tensor_index import find_files
from dovetail_checkpoint.layout.tensor_reader import verify_safetensors
from dovetail_checkpoint.paths.loading import read_groups
from dovetail_checkpoint.paths.opening import is_safetensors, of_paths_that_stay
from dovetail_checkpoint.paths.orbax_item import OrbaxItem
from dovetail_checkpoint.proof import agree, checksums
from dovetail_checkpoint.proof.manifest import Items
from dovetail_checkpoint.proof.progress import Progress, counter
from dovetail_checkpoint.proof.report import (
    IDENTITY,
    DamageError,
    IntegrityReport,
    Problem,
    StepReport,
)
from dovetail_checkpoint.run import reading
from dovetail_checkpoint.run.steps import (
    file_sizes,
    identity_problems,
    is_ours,
    misplacement,
    missing,
    run_of_root,
    step_directories,
    step_number,
    was_deleted,
)

_GROUP_BYTES = 1 << 30


@_elsewhere.verify
@of_paths_that_stay
@jax.transfer_guard("allow")
def verify(path: str | Path, *, progress: Progress | None = None) -> IntegrityReport:
    """Reads and checks a whole run (newest step first), one step `RUN/STEP`, or safetensors.

    Files are compared with SHA256SUMS, arrays with their digests. Data without either is only read.
    A directory named as a step of a run must be this step by its manifest. Nothing is changed. With
    several processes, all of them call this.

    Damage does not raise, since other steps may be intact: `ok` of the result is False then.

    Args:
        path: The run, step or files. A step copied elsewhere may have any name.
        progress: Called with bytes done and total bytes; each file counts twice, hashed and read.

    Raises:
        ValueError: There is no checkpoint at `path`.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_checkpoint import Store, verify
        >>> with Store("run") as store:
        ...     store.save(10, model={"w": jnp.ones(3)})
        >>> [step.verified for step in verify("run").steps]
        [True]
    """
    path = Path(path).absolute()
    if is_safetensors(path):
        verified, problems = verify_safetensors(path)
        step = StepReport(path=path, verified=verified, problems=tuple(problems))
        files = find_files(path)
        sizes = [(files.directory / name).stat().st_size for name in files.headers]
        return IntegrityReport(steps=(step,), files=len(sizes), bytes=sum(sizes))
    run, problems = run_of_root(path)
    steps = list(step_directories(path).values())
    alone = not steps and (is_ours(path) or _compat.is_checkpoint(path))
    if alone:
        steps = [path]
    if not steps:
        raise ValueError(f"there must be a committed step, got path={path}{missing(path)}")
    sizes = {step: file_sizes(step) for step in reversed(steps)}
    done = counter(progress, total_bytes=2 * sum(map(sum, sizes.values())))
    reports = []
    for step in sizes:
        items, damage = reading.read_record(step)
        stated = items.identity if items else None
        if not alone:
            damage = identity_problems(step, stated, run) + damage
        elif note := misplacement(step, stated):
            damage = [Problem(where=IDENTITY, reason=note), *damage]
        reports.append(_step(step, items, damage, size=sum(sizes[step]), done=done))
    # A run that still saves deletes old steps meanwhile: these are not damaged.
    stayed = [x for x in reports if not (x.problems and was_deleted(x.path))]
    if not stayed and alone:
        raise ValueError(f"there must be a committed step, got path={path}{missing(path)}")
    if not stayed:  # every step has a successor by now
        return verify(path, progress=progress)
    read = [size for report in stayed for size in sizes[report.path]]
    return IntegrityReport(
        steps=tuple(stayed), problems=tuple(problems), files=len(read), bytes=sum(read)
    )


@_elsewhere.verify
def verified_digest(path: str | Path) -> str:
    """Returns the digest of a step, "sha256:" and 64 digits, after verifying all of it.

    It is the SHA-256 digest of `SHA256SUMS`, which has one of every file of the step: store it with
    what is made of the step, and `sha256sum` alone can follow it to the files.

    Args:
        path: The step, `RUN/STEP`.

    Raises:
        DamageError: A file or an array differs from its digest.
        ValueError: There is no checkpoint at `path`, or one without digests.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_checkpoint import Store, verified_digest
        >>> with Store("run") as store:
        ...     store.save(10, model={"w": jnp.ones(3)})
        >>> len(verified_digest("run/10"))
        71
    """
    step = Path(path)
    if not checksums.exists(step):
        raise ValueError(
            f"a step must have checksums, got {str(step)!r} without {checksums.SHA256SUMS}: save "
            "it with Store(checksums=True), or wait until the run has written them"
        )
    digest = hashlib.sha256((step / checksums.SHA256SUMS).read_bytes()).hexdigest()
    (report,) = verify(step).steps
    if report.problems:
        raise DamageError(step, report.problems)
    if not report.verified:
        raise ValueError(
            f"a step must be verified by its digests, got {report}: save it with "
            "dovetail_checkpoint.Store"
        )
    return f"sha256:{digest}"


def _step(
    directory: Path,
    items: Items | None,
    problems: list[Problem],
    *,
    size: int,
    done: Callable[[int], None],
) -> StepReport:
    problems += checksums.check(directory, part=jax.process_index(), parts=jax.process_count())
    done(size)
    left = size

    def read(leaf_bytes: int) -> None:
        nonlocal left
        counted = min(leaf_bytes, left)  # a compressed leaf is larger than its file
        left -= counted
        done(counted)

    problems += _missing(directory, items)
    problems = agree.problems(problems)  # before the leaves, whose digests may be collective
    for name in _compat.tree_names(directory):
        if not _is_broken(name, problems):
            problems += _tree(directory, name, read)
    if items is not None:
        problems += reading.object_problems(directory, items)
    done(left)
    agreed = tuple(agree.problems(problems))
    return StepReport(
        path=directory,
        step=step_number(directory),
        verified=items is not None and not agreed,
        problems=agreed,
        foreign=items is None and not is_ours(directory),
        numbered=items is None or items.identity is not None,
    )


def _missing(directory: Path, items: Items | None) -> list[Problem]:
    """Returns the trees of the manifest without any file left."""
    there = _compat.tree_names(directory)
    return [
        Problem(where=name, reason="is missing")
        for name, item in (items.trees if items else {}).items()
        if name not in there and jax.tree.leaves(item.tree)
    ]


def _is_broken(name: str | None, problems: list[Problem]) -> bool:
    """Whether damaged files hold no arrays; then no leaf can be located."""
    return any(p.where.startswith(f"{name}/") and "/d/" not in p.where for p in problems)


def _tree(directory: Path, name: str | None, read: Callable[[int], None]) -> list[Problem]:
    try:
        source = OrbaxItem(directory, name)
    except DamageError as error:
        return list(error.problems)
    tree_problems: list[Problem] = []
    readable = [n for n, leaf in source.leaves.items() if leaf.dtype not in _TEXTS]
    for values, problems in read_groups(source, dict.fromkeys(readable), group_bytes=_GROUP_BYTES):
        tree_problems += [
            Problem(where=f"{name}/{problem.where}", reason=problem.reason)
            if name is not None and problem.where in source.leaves
            else problem
            for problem in problems
        ]
        read(sum(mapping.leaf_bytes(source.leaves[leaf]) for leaf in values))
    return tree_problems


# Plain Orbax holds texts too; they lie in metadata, which the checksums cover.
_TEXTS = ("python str", "python bytes")

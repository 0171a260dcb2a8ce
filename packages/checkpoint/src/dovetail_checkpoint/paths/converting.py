# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conversion of a checkpoint to another format or layout, with digests, complete or not at all."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from dovetail_checkpoint import _elsewhere
from dovetail_checkpoint._durable import new_directory
from dovetail_checkpoint.layout.mapping import Explanation
from dovetail_checkpoint.layout.rules import Rule
from dovetail_checkpoint.paths.assembly import assembled
from dovetail_checkpoint.paths.export import export_safetensors, tensors
from dovetail_checkpoint.paths.loading import explain
from dovetail_checkpoint.paths.opening import of_paths_that_stay, open_source
from dovetail_checkpoint.paths.orbax_item import OrbaxItem
from dovetail_checkpoint.proof.progress import Progress, counter
from dovetail_checkpoint.run.store import Store

Format = Literal["orbax", "safetensors"]

_FILE_BYTES = 5_000_000_000  # the most that transformers puts into a file
# The step that a conversion writes, and its item where the source has no name for the tree.
_STEP, _ITEM = 0, "model"
_TEXTS = ("python str", "python bytes")


@_elsewhere.call
@of_paths_that_stay
@jax.transfer_guard("allow")
def convert(
    path: str | Path,
    to: str | Path,
    *,
    format: Format,
    item: str | None = None,
    rules: Sequence[Rule] = (),
    file_bytes: int | None = None,
    progress: Progress | None = None,
) -> None:
    """Writes the leaves at `path`, changed by `rules`, to the new directory `to`.

    Args:
        path: As for `load`.
        to: A new directory.
        format: "safetensors" streams, as `export_safetensors` does. "orbax" makes `to` a run with
            step 0: the tree as nested dicts, one per level of the names, with digests and
            checksums. Its item keeps the source's name, or is `model`. The result passes through
            the host's memory, beside one group.
        item: As for `load`.
        rules: Applied in order to all leaves.
        file_bytes: Size limit of each safetensors file. Default: 5e9.
        progress: Called with bytes done and total bytes.

    Raises:
        ValueError: The rules or the leaves do not fit.
        FileExistsError: `to` is in use.
        DamageError: A leaf differs from its digest.
        OSError, RuntimeError: The disk is full, or several processes run.

    Example:

        >>> import jax.numpy as jnp
        >>> from dovetail_checkpoint import Store, convert, export_safetensors, inspect, unstack
        >>> with Store("run") as store:
        ...     store.save(10, model={"layers": {"w": jnp.ones((2, 3))}})
        >>> export_safetensors("run/10", "hf", rules=[unstack("layers.**", "layers.#.**")])
        >>> convert("hf", "again", format="orbax")
        >>> [leaf.name for leaf in inspect("again/0").trees[0].leaves]
        ['layers.0.w', 'layers.1.w']
    """
    plan = planned(path, format=format, item=item, rules=rules, file_bytes=file_bytes)
    to = Path(to).absolute()
    if format == "safetensors":
        export_safetensors(
            path,
            to,
            item=item,
            rules=rules,
            file_bytes=_FILE_BYTES if file_bytes is None else file_bytes,
            progress=progress,
        )
        return
    source = open_source(path, item=item)
    with new_directory(to) as root, Store(root) as store:
        read = counter(progress, total_bytes=plan.read_bytes)
        leaves = dict(assembled(source, plan, read=read))
        name = source.item if isinstance(source, OrbaxItem) else None
        store.save(_STEP, **{name or _ITEM: _nested(leaves)})


@of_paths_that_stay
def planned(
    path: str | Path,
    *,
    format: Format,
    item: str | None = None,
    rules: Sequence[Rule] = (),
    file_bytes: int | None = None,
) -> Explanation:
    """Returns the plan of `convert`. Reads no array.

    Args:
        path: As for `convert`.
        format: As for `convert`.
        item: As for `convert`.
        rules: As for `convert`.
        file_bytes: As for `convert`.

    Raises:
        ValueError: `convert` would refuse, except for an existing destination.
    """
    _check(format, file_bytes)
    plan = explain(path, item=item, rules=rules)
    if format == "safetensors":
        tensors(plan)
        return plan
    if not plan.built:
        raise ValueError(
            "a step must have at least one leaf, got none; leave out a rule that drops them"
        )
    texts = [name for name, built in plan.built.items() if built.dtype in _TEXTS]
    if texts:
        raise ValueError(
            f"a leaf must be an array, key or number, got the text {texts[0]}; drop({texts[0]!r})"
        )
    _nested(plan.built)
    return plan


def _check(format: str, file_bytes: int | None) -> None:
    if format not in ("orbax", "safetensors"):
        raise ValueError(
            f"format must be 'orbax' or 'safetensors', got format={format!r}; use 'safetensors'"
        )
    if format == "orbax" and file_bytes is not None:
        raise ValueError(
            f"file_bytes must be left to safetensors, got file_bytes={file_bytes} for "
            "format='orbax'; leave it out"
        )
    if jax.process_count() > 1:
        raise RuntimeError(
            f"a conversion must run in one process, got process_count={jax.process_count()}; "
            "run it without jax.distributed: it reads to the host"
        )


def _nested(leaves: Mapping[str, Any]) -> Any:
    """Returns dicts by the levels of the names; the leaf itself if its name is ''."""
    if list(leaves) == [""]:
        return leaves[""]
    root: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *levels, last = (key.replace("~1", "/").replace("~0", "~") for key in name.split("."))
        at = root
        for level in levels:
            at = at.setdefault(level, {})
            if not isinstance(at, dict):
                raise _inside(name)
        if last in at:
            raise _inside(name)
        at[last] = leaf
    return root


def _inside(name: str) -> ValueError:
    return ValueError(
        "no leaf may lie inside another one where names are levels of a tree, got "
        f"{name!r} beside a leaf on its path; rename or drop one of them"
    )

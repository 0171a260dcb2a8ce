# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A run that is about to train: its recipe, rows, measures and export."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail_data import Pretrained, Rows
from dovetail_models import Decoder, save
from dovetail_models.hf.hub import resolve
from dovetail_stack.model_directory import EXPORT, locate, refuse_quantized
from dovetail_stack.recipes import continuation
from dovetail_stack.recipes.fitting import Recipe
from dovetail_stack.recipes.sampling import Samples
from dovetail_train import Hook


@dataclass(frozen=True, kw_only=True)
class Job:
    """The parts of a run that depend on its recipe, for `training.execute`.

    Args:
        recipe: The way to train.
        rows: Rows to train on.
        held_out: Rows to measure on.
        metrics: Losses of the module on held-out rows, by name. They read the batches as
            `recipe.batches` makes them.
        export: Writes what is exported of a trained module to the run's directory.
        begin: Receives the steps of the run before it trains. None: nothing to do.
        hooks: Hooks of its own, such as samples of text.
        at_ends: Samples before the first step and after the last. None: none.
        ids: Ids of a tokenizer that was trained for the run. None: none was.
    """

    recipe: Recipe
    rows: Rows
    held_out: Rows
    metrics: Mapping[str, Any]
    export: Callable[[Any, Path], None]
    begin: Callable[[int], None] | None = None
    hooks: Sequence[Hook] = ()
    at_ends: Samples | None = None
    ids: int | None = None


def opened(
    named: str,
    recipe: str,
    *,
    length: int,
    read: Callable[..., tuple[Any, Pretrained]] = continuation.opened,
) -> tuple[Path, Any, Pretrained]:
    """Returns the directory of a model to begin from, its configuration and its tokenizer.

    Args:
        named: The directory, a finished run, or a Hub id.
        recipe: Name of the recipe, for messages.
        length: Tokens in a row.
        read: Reads a directory.

    Raises:
        ValueError: The model is quantized, or cannot be trained on such rows.
    """
    path = resolve(named)
    refuse_quantized(path, recipe)
    directory = locate(path)
    return directory, *read(directory, length=length)


def export(model: Decoder, out: Path, *, like: Path) -> None:
    """Writes `out`/hf with the tokenizer. Replaces an earlier export of this run.

    Args:
        model: The decoder.
        out: Directory of the run.
        like: Directory with the tokenizer's files.
    """
    if (out / EXPORT).exists():
        shutil.rmtree(out / EXPORT)
    save(model, out / EXPORT, like=like)

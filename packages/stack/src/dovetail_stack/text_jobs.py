# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs of the recipes that train on the text of a directory: pretrain, continue, distil."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import Int

from dovetail_data import Pretrained, TextSelection, check_ends, hold_out_files, pack, token_bytes
from dovetail_models import Config
from dovetail_runs import Launch
from dovetail_stack import job
from dovetail_stack.job import Job
from dovetail_stack.processes import is_first, say, shared
from dovetail_stack.progress import Writing
from dovetail_stack.recipes.continuation import continuation
from dovetail_stack.recipes.distillation import distilling
from dovetail_stack.recipes.engine import GREEDY, end_ids, suggestion
from dovetail_stack.recipes.families import check_experts, config_for, config_of, read_keys
from dovetail_stack.recipes.fitting import Recipe, attention
from dovetail_stack.recipes.language_model import pretraining
from dovetail_stack.recipes.sampling import Samples
from dovetail_stack.recipes.text import Prepared, encode, opened, prepare, select
from dovetail_stack.settings import Continue, Distil, FromText, Pretrain, S, load
from dovetail_train import BitsPerByte, lm_loss

T = TypeVar("T", bound=FromText)


def outlined(run: FromText, mesh: Mesh | AbstractMesh) -> Recipe:
    """Returns the recipe before the text is read. The vocabulary has the requested size."""
    options = {"length": run.training.length, "keys": run.keys}
    ways = dict(mesh.shape).get("expert", 1)
    if isinstance(run, Pretrain):
        config = config_of(run.shape, vocab_size=run.vocabulary.vocab_size, **options)
        check_experts(config, ways=ways)
        return pretraining(config, run.training, mesh=mesh)
    assert isinstance(run, Continue | Distil)
    directory, config, _ = _opened(run)
    if isinstance(run, Distil):
        config = config_of(run.shape, vocab_size=config.vocab_size, **options)
    check_experts(config, ways=ways)
    return _from_model(run, directory, config, mesh)


def _from_model(
    run: Continue | Distil, directory: Path, config: Config, mesh: Mesh | AbstractMesh
) -> Recipe:
    """Returns the recipe of a run that begins from a model; `config` is the student's in distil."""
    if isinstance(run, Continue):
        return continuation(directory, run.training, mesh=mesh)
    return distilling(config, directory, run.distillation, training=run.training, mesh=mesh)


def with_keys(run: S) -> S:
    """Returns the settings of a new run with the keys of its config.json, if there is one."""
    if not isinstance(run, Pretrain | Distil) or run.shape.config is None or run.keys is not None:
        return run
    return dataclasses.replace(run, keys=read_keys(run.shape.config))


def checked(run: T) -> T:
    """Returns the settings of a new run with the names of files without text."""
    selection, _ = split(run)
    if selection.counts:
        print(f"{selection} below {run.files.text}", file=sys.stderr, flush=True)
    return dataclasses.replace(run, skipped=selection.skipped)


def job_of(run: FromText, out: Path, mesh: Mesh, launch: Launch) -> Job:
    """Writes the corpora of a run, or opens them.

    Args:
        run: Settings.
        out: Directory of the run.
        mesh: Devices.
        launch: Receives samples.
    """
    options: dict[str, Any] = {"length": run.training.length, "keys": run.keys}
    if isinstance(run, Pretrain):
        text = _prepared(run, prepare, out, vocab_size=run.vocabulary.vocab_size)
        config = config_for(run.shape, text.tokenizer, **options)
        recipe = pretraining(config, run.training, mesh=mesh)
        joined = _joined(run, text, recipe, launch, like=out)
        return dataclasses.replace(joined, ids=text.tokenizer.vocab_size)
    assert isinstance(run, Continue | Distil)
    directory, config, tokenizer = _opened(run)
    ids = config.vocab_size
    text = _prepared(run, encode, out, tokenizer=tokenizer, vocab_size=ids)
    if isinstance(run, Distil):
        options |= {"vocab_size": ids, "eos_ids": end_ids(directory, ids)}
        config = config_for(run.shape, tokenizer, **options)
    recipe = _from_model(run, directory, config, mesh)
    return _joined(run, text, recipe, launch, like=directory)


def with_ids(run: Pretrain, ids: int, out: Path) -> Pretrain:
    """Returns the settings with the ids that the text yielded, maybe fewer than asked for.

    Their number is stored, and no other setting: those hold once a step was made.

    Args:
        run: Settings.
        ids: Ids of the tokenizer.
        out: Directory of the run.
    """
    wanted = run.vocabulary.vocab_size
    if ids == wanted:
        return run
    say(
        f"The text yields {ids} ids, not the {wanted} of --vocab-size: tokenizer and model have "
        f"{ids}. For more, pass --text with more text."
    )
    vocabulary = dataclasses.replace(run.vocabulary, vocab_size=ids)
    replace: dict[str, Any] = {"vocabulary": vocabulary, "asked": {"vocab_size": wanted}}
    if is_first():
        dataclasses.replace(load(out), **replace).save(out)
    return dataclasses.replace(run, **replace)


def _joined(run: FromText, text: Prepared, recipe: Recipe, launch: Launch, *, like: Path) -> Job:
    """Joins text and recipe. The tokenizer of `like` is exported."""
    length, seed = run.training.length, run.training.seed
    hooks = []
    published = isinstance(run, Continue | Distil)
    drawn = published and run.monitoring.directory_sampling
    if run.monitoring.samples:
        if published and not drawn and (line := suggestion(like, GREEDY)):
            say(line)
        samples = Samples(
            launch.write_text,
            text.tokenizer,
            prompts=[run.monitoring.prompt],
            every=run.monitoring.samples,
            decoder=recipe.decoder,
            directory=like,
            directory_sampling=drawn,
        )
        hooks.append(samples)
    metrics: dict[str, Any] = {"loss": lm_loss(attention=attention)}
    if (sizes := bytes_of_ids(text.tokenizer)) is not None:
        metrics["bits_per_byte"] = BitsPerByte(sizes, attention=attention)
    return Job(
        recipe=recipe,
        rows=pack(text.train, length=length, seed=seed),
        held_out=pack(text.held_out, length=length, seed=seed),
        metrics={name: recipe.of_decoder(loss) for name, loss in metrics.items()},
        export=lambda module, out: job.export(recipe.finished(module), out, like=like),
        hooks=hooks,
    )


def _opened(run: Continue | Distil) -> tuple[Path, Config, Pretrained]:
    """Returns the directory of the model that the run begins from, its config and tokenizer."""
    named = run.source.model if isinstance(run, Continue) else run.distillation.teacher
    directory, config, tokenizer = job.opened(named, run.recipe, length=run.training.length)
    check_ends(tokenizer, vocab_size=config.vocab_size)
    return directory, config, tokenizer


def split(run: FromText) -> tuple[TextSelection, tuple[list[Path], list[Path]]]:
    """Returns the files of a run, and those to train on and to hold out.

    Only a new run reads all of them.
    """
    files, root = run.files, Path(run.files.text)
    selection = select(root, pattern=files.pattern, skip=files.skip, skipped=run.skipped)
    return selection, hold_out_files(selection.files, root=root, share=files.held_out)


def _prepared(run: FromText, write: Any, out: Path, **options: Any) -> Prepared:
    """Writes both corpora with `prepare` or `encode` on process 0. The others open them."""
    return shared(
        lambda: _written(run, write, out, **options),
        lambda: opened(out, tokenizer=options.get("tokenizer")),
    )


def _written(run: FromText, write: Any, out: Path, **options: Any) -> Prepared:
    _, (train, held_out) = split(run)
    counts = f"{len(train)} files to train on, {len(held_out)} held out"
    print(f"{counts}, from {run.files.text}", file=sys.stderr, flush=True)
    with Writing() as writing:
        workers = os.cpu_count() or 1
        try:
            return write(train, held_out, out, workers=workers, progress=writing, **options)
        except ValueError as error:
            error.add_note(
                f"The files were chosen by --pattern {run.files.pattern!r} without --skip "
                f"{run.files.skip}; for others, type the command anew with other options."
            )
            raise


def bytes_of_ids(tokenizer: Pretrained) -> Int[np.ndarray, " V"] | None:
    """Returns the bytes of text per id. Says why and returns None if the tokenizer lacks them."""
    try:
        return token_bytes(tokenizer)
    except ValueError as error:
        say(f"Bits per byte will not be measured: {error}")
        return None

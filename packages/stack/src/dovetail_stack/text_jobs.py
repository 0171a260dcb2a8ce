# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs of the recipes that train on the text of a directory: pretrain, continue, distil."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dovetail_stack import job
from dovetail_stack.job import SAMPLES, Job
from dovetail_stack.model_directory import locate, refuse_quantized
from dovetail_stack.processes import on_first, say
from dovetail_stack.progress import Writing
from dovetail_stack.settings import Continue, Distil, FromText, Pretrain

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh

    from dovetail_data import Pretrained
    from dovetail_models import Config
    from dovetail_stack.recipes.fitting import Recipe
    from dovetail_stack.recipes.text import Prepared, Selection

T = TypeVar("T", bound=FromText)


def outlined(run: FromText, mesh: "Mesh | AbstractMesh") -> "Recipe":
    """Returns the recipe before the text is read. The vocabulary has the requested size."""
    from dovetail_stack.recipes.families import check_experts, config_of

    options = {"length": run.training.length, "keys": run.keys}
    ways = dict(mesh.shape).get("expert", 1)
    if isinstance(run, Continue):
        from dovetail_stack.recipes.continuation import continuation

        source, config, _ = _opened(run)
        check_experts(config, ways=ways)
        return continuation(source, run.training, mesh=mesh)
    if isinstance(run, Distil):
        from dovetail_stack.recipes.distillation import distilling

        teacher, config, _ = _opened(run)
        student = config_of(run.shape, vocab_size=config.vocab_size, **options)
        check_experts(student, ways=ways)
        return distilling(student, teacher, run.distillation, training=run.training, mesh=mesh)
    from dovetail_stack.recipes.language_model import pretraining

    assert isinstance(run, Pretrain)
    config = config_of(run.shape, vocab_size=run.vocabulary.vocab_size, **options)
    check_experts(config, ways=ways)
    return pretraining(config, run.training, mesh=mesh)


def with_keys(run: T) -> T:
    """Returns the settings of a new run with the keys of its config.json, if there is one."""
    if not isinstance(run, Pretrain | Distil) or run.shape.config is None or run.keys is not None:
        return run
    from dovetail_stack.recipes.families import read_keys

    return dataclasses.replace(run, keys=read_keys(run.shape.config))


def checked(run: T) -> T:
    """Returns the settings of a new run with the names of files without text."""
    selection = _selected(run)
    split_files(run, selection.files)
    if selection.counts:
        print(f"{selection} below {run.files.text}", file=sys.stderr, flush=True)
    return dataclasses.replace(run, skipped=selection.skipped)


def job_of(run: FromText, out: Path, mesh: "Mesh") -> Job:
    """Writes the corpora of a run, or opens them.

    Args:
        run: Settings.
        out: Directory of the run.
        mesh: Devices.
    """
    if isinstance(run, Continue):
        return _continuing(run, out, mesh)
    if isinstance(run, Distil):
        return _distilling(run, out, mesh)
    assert isinstance(run, Pretrain)
    return _pretraining(run, out, mesh)


def _pretraining(run: Pretrain, out: Path, mesh: "Mesh") -> Job:
    from dovetail_stack.recipes.families import config_for
    from dovetail_stack.recipes.language_model import pretraining
    from dovetail_stack.recipes.text import prepare

    text = _prepared(run, prepare, out, vocab_size=run.vocabulary.vocab_size)
    options = {"length": run.training.length, "keys": run.keys}
    config = config_for(run.shape, text.tokenizer, **options)
    joined = _joined(run, text, pretraining(config, run.training, mesh=mesh), out, like=out)
    return dataclasses.replace(joined, ids=text.tokenizer.vocab_size)


def with_ids(run: Pretrain, ids: int) -> Pretrain:
    """Returns the settings with the ids that the text yielded, which may be fewer than asked for.

    Args:
        run: Settings.
        ids: Ids of the tokenizer.
    """
    wanted = run.vocabulary.vocab_size
    if ids == wanted:
        return run
    say(
        f"The text yields {ids} ids, not the {wanted} of --vocab-size: tokenizer and model have "
        f"{ids}. For more, pass --text with more text."
    )
    vocabulary = dataclasses.replace(run.vocabulary, vocab_size=ids)
    return dataclasses.replace(run, vocabulary=vocabulary, asked={"vocab_size": wanted})


def _continuing(run: Continue, out: Path, mesh: "Mesh") -> Job:
    from dovetail_stack.recipes.continuation import continuation
    from dovetail_stack.recipes.text import encode

    source, config, tokenizer = _opened(run)
    text = _prepared(run, encode, out, tokenizer=tokenizer, vocab_size=config.vocab_size)
    return _joined(run, text, continuation(source, run.training, mesh=mesh), out, like=source)


def _distilling(run: Distil, out: Path, mesh: "Mesh") -> Job:
    from dovetail_stack.recipes.distillation import distilling
    from dovetail_stack.recipes.engine import end_ids
    from dovetail_stack.recipes.families import config_for
    from dovetail_stack.recipes.text import encode

    teacher, config, tokenizer = _opened(run)
    text = _prepared(run, encode, out, tokenizer=tokenizer, vocab_size=config.vocab_size)
    options: dict[str, Any] = {"length": run.training.length, "keys": run.keys}
    eos_ids = end_ids(teacher, config.vocab_size)
    options |= {"vocab_size": config.vocab_size, "eos_ids": eos_ids}
    student = config_for(run.shape, tokenizer, **options)
    recipe = distilling(student, teacher, run.distillation, training=run.training, mesh=mesh)
    return _joined(run, text, recipe, out, like=teacher)


def _joined(run: FromText, text: "Prepared", recipe: "Recipe", out: Path, *, like: Path) -> Job:
    """Joins text and recipe. The tokenizer of `like` is exported."""
    from dovetail_data import pack
    from dovetail_stack.recipes.engine import GREEDY, suggestion
    from dovetail_stack.recipes.fitting import attention
    from dovetail_stack.recipes.sampling import Samples
    from dovetail_train import lm_loss

    length, seed = run.training.length, run.training.seed
    hooks = []
    drawn = isinstance(run, Continue | Distil) and run.monitoring.directory_sampling
    if run.monitoring.samples:
        if not drawn and like != out and (line := suggestion(like, GREEDY)):
            say(line)
        samples = Samples(
            out / SAMPLES,
            text.tokenizer,
            prompts=[run.monitoring.prompt],
            every=run.monitoring.samples,
            decoder=recipe.decoder,
            directory=like,
            directory_sampling=drawn,
        )
        hooks.append(samples)
    metrics = {"loss": lm_loss(attention=attention), **_bits_per_byte(text.tokenizer)}
    return Job(
        recipe=recipe,
        rows=pack(text.train, length=length, seed=seed),
        held_out=pack(text.held_out, length=length, seed=seed),
        metrics={name: recipe.of_decoder(loss) for name, loss in metrics.items()},
        export=lambda module, out: job.export(recipe.finished(module), out, like=like),
        hooks=hooks,
    )


def _opened(run: Continue | Distil) -> "tuple[Path, Config, Pretrained]":
    """The directory of the model that the run begins from, its configuration and its tokenizer."""
    from dovetail_models.hf.hub import resolve
    from dovetail_stack.recipes.continuation import opened
    from dovetail_stack.recipes.vocabulary import check_ends

    named = run.source.model if isinstance(run, Continue) else run.distillation.teacher
    path = resolve(named)
    refuse_quantized(path, run.recipe)
    directory = locate(path)
    config, tokenizer = opened(directory, length=run.training.length)
    check_ends(tokenizer, config.vocab_size)
    return directory, config, tokenizer


def _selected(run: FromText) -> "Selection":
    """Selects the files of a run. Only a new run reads all of them."""
    from dovetail_stack.recipes.text import select

    files = run.files
    options = {"pattern": files.pattern, "skip": files.skip, "skipped": run.skipped}
    return select(Path(files.text), **options)


def split_files(run: FromText, files: list[Path]) -> tuple[list[Path], list[Path]]:
    """Returns the files to train on and the held-out files."""
    from dovetail_stack.recipes.text import split

    return split(files, root=Path(run.files.text), held_out=run.files.held_out)


def _prepared(run: FromText, write: Any, out: Path, **options: Any) -> "Prepared":
    """Writes both corpora with `prepare` or `encode` on process 0. The others open them."""
    from dovetail_stack.recipes.text import opened

    prepared = []
    on_first(lambda: prepared.append(_written(run, write, out, **options)))
    return prepared[0] if prepared else opened(out, tokenizer=options.get("tokenizer"))


def _written(run: FromText, write: Any, out: Path, **options: Any) -> "Prepared":
    train, held_out = split_files(run, _selected(run).files)
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


def _bits_per_byte(tokenizer: "Pretrained") -> dict[str, Any]:
    """Returns the metric, or nothing if the tokenizer does not tell the bytes of an id."""
    from dovetail_data import token_bytes
    from dovetail_stack.recipes.fitting import attention
    from dovetail_train import BitsPerByte

    try:
        sizes = token_bytes(tokenizer)
    except ValueError as error:
        say(f"Bits per byte will not be measured: {error}")
        return {}
    return {"bits_per_byte": BitsPerByte(sizes, attention=attention)}

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs of the recipes that tune a model on records: chat, prefer, reward, embed."""

import os
import shutil
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from jax.sharding import AbstractMesh, Mesh
from tqdm.auto import tqdm

import dovetail_data
from dovetail_data import (
    Contrast,
    Corpora,
    Corpus,
    Encoder,
    Pretrained,
    Rows,
    Source,
    batches,
    contrasts,
    hold_out,
    pack,
    pairs,
    within,
    write_sides,
)
from dovetail_runs import Launch
from dovetail_stack import job
from dovetail_stack.job import Job
from dovetail_stack.model_directory import EXPORT, locate
from dovetail_stack.processes import say, shared
from dovetail_stack.progress import Writing
from dovetail_stack.recipes import (
    adapters,
    continuation,
    dialogue,
    embedding,
    preference,
    records,
    reward,
)
from dovetail_stack.recipes.engine import GREEDY, suggestion
from dovetail_stack.recipes.families import check_experts
from dovetail_stack.recipes.fitting import Recipe, attention, evaluated_batches, places_of
from dovetail_stack.recipes.options import RefusedError
from dovetail_stack.recipes.reference import Referenced, in_precision
from dovetail_stack.recipes.sampling import Samples
from dovetail_stack.settings import Chat, Embed, FromMessages, FromRecords, Prefer, Reward
from dovetail_train import lm_loss

PEFT, REFERENCE = "peft", "reference"
_ANSWERS = 32  # in which the template's end of a turn is looked for
_LITTLE_BYTES = 1 << 20  # of records, encoded in less than a second


def outlined(run: FromRecords, mesh: Mesh | AbstractMesh) -> Recipe:
    """Returns the recipe on devices that may be absent. Reads neither records nor weights."""
    directory, config, _ = _opened(run)
    if isinstance(run, FromMessages):
        check_experts(config, ways=dict(mesh.shape).get("expert", 1))
    return _recipe(run, directory, mesh)


def unit_of(run: FromRecords) -> int:
    """Returns the rows of an example, which belong together."""
    if isinstance(run, Embed):
        return len(run.embedding.fields)
    return 2 if isinstance(run, Prefer | Reward) else 1


def check_files(run: FromRecords) -> None:
    """Raises ValueError unless the records are files that can be read."""
    records.opened(run.examples.records, json_columns=run.examples.json_columns)


def check(run: FromRecords) -> None:
    """Raises ValueError unless a new run has a chat template and records that can be split."""
    directory, _, tokenizer = _opened(run)
    _encoder(run, tokenizer, directory)
    _sides(run)


def job_of(run: FromRecords, out: Path, mesh: Mesh, launch: Launch) -> Job:
    """Writes the corpora of a run, or opens them.

    Args:
        run: Settings.
        out: Directory of the run.
        mesh: Devices.
        launch: Receives answers to held-out prompts.
    """
    directory = _opened(run)[0]
    corpora = shared(lambda: encoded(run, out), lambda: Corpora.open(out))
    recipe = _recipe(run, directory, mesh)
    rows, held_out = (rows_of(run, corpus) for corpus in (corpora.train, corpora.held_out))
    options: dict[str, Any] = {}
    if isinstance(run, Chat | Prefer):
        samples = _samples(run, corpora, recipe, directory, launch)
        options["at_ends"] = samples
        options["hooks"] = [samples] if samples is not None and run.monitoring.samples else []
    if isinstance(run, Prefer) and "ref_logps" in (recipe.fields or {}):
        rows, held_out, options["begin"] = _referenced(run, recipe, out, rows, held_out)
    return Job(
        recipe=recipe,
        rows=rows,
        held_out=held_out,
        metrics=_metrics(run, recipe),
        export=lambda module, out: _export(run, recipe, module, out, corpora.held_out),
        **options,
    )


def tokenizer_of(run: FromRecords) -> Pretrained:
    """Returns the tokenizer of the model."""
    return _opened(run)[2]


def _opened(run: FromRecords) -> tuple[Path, Any, Pretrained]:
    """Returns the directory of the model, its configuration and its tokenizer."""
    read = embedding.opened if isinstance(run, Embed) else continuation.opened
    return job.opened(run.source.model, run.recipe, length=run.training.length, read=read)


def _encoder(run: FromRecords, tokenizer: Pretrained, directory: Path) -> Encoder:
    if isinstance(run, Embed):
        names = run.embedding
        options = {"query": names.query, "positive": names.positive, "negative": names.negative}
        return Contrast(tokenizer, **options)
    assert isinstance(run, FromMessages)
    template = dialogue.template_of(directory, run.dialogue)
    if isinstance(run, Chat):
        said = {"train_on": run.dialogue.train_on, "ignore_keys": run.dialogue.ignore_keys}
        return dovetail_data.Chat(tokenizer, template=template, **said)
    margin = run.reward.margin if isinstance(run, Reward) else None
    fields = {margin: dovetail_data.values("float32")} if margin else {}
    options = {"fields": fields, "ignore_keys": run.dialogue.ignore_keys}
    return dovetail_data.Preference(tokenizer, template=template, **options)


def _recipe(run: FromRecords, directory: Path, mesh: Mesh | AbstractMesh) -> Recipe:
    if isinstance(run, Chat):
        return continuation.continuation(directory, run.training, mesh=mesh)
    if isinstance(run, Embed):
        return embedding.embedding_recipe(
            directory, run.embedding, encoding=run.training, mesh=mesh
        )
    if isinstance(run, Reward):
        return reward.rewarding_recipe(directory, run.reward, tuning=run.training, mesh=mesh)
    assert isinstance(run, Prefer)
    return preference.preferring_recipe(directory, run.preference, tuning=run.training, mesh=mesh)


def _sides(run: FromRecords) -> tuple[Source, Source]:
    form = None
    if isinstance(run, Prefer | Reward):
        form = dialogue.as_messages
    elif isinstance(run, Chat) and run.dialogue.train_on != "all":
        form = dialogue.answered
    examples = run.examples
    source = records.opened(examples.records, json_columns=examples.json_columns)
    try:
        return hold_out(source, share=examples.held_out, form=form)
    except ValueError as error:
        raise RefusedError(*error.args) from error


def encoded(run: FromRecords, out: Path) -> Corpora:
    """Encodes the records below `out`, or opens them, and says which were left out.

    Raises ValueError if a record is longer than a row, or damaged.
    """
    directory, config, tokenizer = _opened(run)
    encoder = within(_encoder(run, tokenizer, directory), vocab_size=config.vocab_size)
    sides = _sides(run)
    with Writing() as writing:
        corpora = write_sides(
            sides,
            out,
            encoder=encoder,
            max_corrupt=run.examples.max_corrupt,
            workers=_workers(sides[0]),
            progress=writing,
        )
    print(corpora, file=sys.stderr, flush=True)
    length, targets = run.training.length, not isinstance(run, Embed)
    records.check_fit(corpora, sides, length=length, positions=config.max_length, targets=targets)
    if isinstance(run, Embed) and min(len(corpora.train), len(corpora.held_out)) < 2:
        raise RefusedError(
            f"texts are measured against those of another record, got {corpora}: add records, or "
            f"pass another held_out= than {run.examples.held_out}"
        )
    return corpora


def _workers(side: Source) -> int:
    """Returns the processes that encode: this one alone for little, since others take a second."""
    little = sum(piece.bytes for piece in side.parts()) < _LITTLE_BYTES
    return 1 if little else os.cpu_count() or 1


def rows_of(run: FromRecords, corpus: Corpus) -> Rows:
    """Returns the rows of a corpus, as the recipe trains on them."""
    if isinstance(run, Embed):
        return contrasts(corpus, length=run.training.length)
    if isinstance(run, Prefer | Reward):
        return pairs(corpus, length=run.training.length)
    return pack(corpus, length=run.training.length, seed=run.training.seed)


def _referenced(
    run: Prefer, recipe: Recipe, out: Path, rows: Rows, held_out: Rows
) -> tuple[Rows, Rows, Callable[[int], None]]:
    """Returns the rows with the field of the reference, and the function that computes it.

    It computes the rows of the run's steps, and the held-out rows that are measured.
    """
    size, seed = run.training.global_batch, run.training.seed
    both = Referenced(rows), Referenced(held_out)

    def begin(steps: int) -> None:
        whole = {"global_batch": size, "seed": None, "epochs": 1}
        measured = islice(batches(held_out, **whole), evaluated_batches(size))
        used: Iterable[Any] = batches(rows, **whole)
        total = 2 * len(rows)
        if steps * size < total:
            spans = [range(first, end) for first, end in run.leave_out]
            places = places_of(spans, rows, global_batch=size, seed=seed)
            order = batches(rows, global_batch=size, seed=seed, leave_out=places)
            used, total = islice(order, steps), steps * size
        model = in_precision(recipe.model(), run.training.precision)
        options: dict[str, Any] = {"scorer": preference.scorer}
        with tqdm(desc=REFERENCE, total=total, unit="row") as bar:
            both[0].fill(used, model, out / REFERENCE, progress=bar.update, **options)
        both[1].fill(measured, model, out / REFERENCE, **options)

    return both[0].rows, both[1].rows, begin


def _metrics(run: FromRecords, recipe: Recipe) -> dict[str, Any]:
    """Returns the measures of held-out rows."""
    if isinstance(run, Prefer):
        return {"pairs": preference.loss_of(run.preference, tuning=run.training)}
    if isinstance(run, Reward):
        return {"pairs": reward.loss_of(run.reward)}
    if isinstance(run, Embed):
        return {"pairs": embedding.loss_of(run.embedding)}
    return {"loss": recipe.of_decoder(lm_loss(attention=attention))}


def _samples(
    run: Chat | Prefer, corpora: Corpora, recipe: Recipe, directory: Path, launch: Launch
) -> Samples | None:
    """Returns the answers to held-out prompts, beside those of the records."""
    monitoring, tokenizer = run.monitoring, tokenizer_of(run)
    prompts = dialogue.held_out_prompts(corpora.held_out, monitoring.prompts)
    if not prompts:
        return None
    if not monitoring.directory_sampling and (line := suggestion(directory, GREEDY)):
        say(line)
    return Samples(
        launch.write_text,
        tokenizer,
        prompts=[ids for ids, _ in prompts],
        every=max(1, monitoring.samples),
        decoder=recipe.decoder,
        directory=directory,
        directory_sampling=monitoring.directory_sampling,
        max_tokens=monitoring.answer_tokens,
        stop_token_ids=sorted(dialogue.answer_ends((wanted for _, wanted in prompts), tokenizer)),
        wanted=[tokenizer.decode(ids) for _, ids in prompts],
    )


def _export(run: FromRecords, recipe: Recipe, module: Any, out: Path, held_out: Corpus) -> None:
    """Writes RUN/hf, and RUN/peft where adapters are the result. Replaces earlier exports."""
    directory = locate(Path(run.source.model))
    for name in (EXPORT, PEFT):
        if (out / name).exists():
            shutil.rmtree(out / name)
    finished = recipe.finished(module)
    if isinstance(run, Reward):
        reward.save_classifier(finished, out / EXPORT, like=directory)
    else:
        job.export(finished, out, like=directory)
    if isinstance(run, Chat | Prefer) and run.training.lora_rank:
        adapters.save_peft(recipe.decoder(module), out / PEFT, run.training, base=directory)
    if isinstance(run, Chat | Prefer):
        answers = [answer for _, answer in dialogue.held_out_prompts(held_out, _ANSWERS)]
        ends = dialogue.answer_ends(answers, tokenizer_of(run))
        dialogue.add_ends(out / EXPORT, ends)
    if isinstance(run, FromMessages) and run.dialogue.template is not None:
        source = dialogue.template_of(directory, run.dialogue).source
        (out / EXPORT / dialogue.TEMPLATE).write_text(source, encoding="utf-8")

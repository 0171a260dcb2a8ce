# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Train a language model on the text files of a directory.

The same command again, or just --out, resumes a run that was interrupted or killed. A finished
run is exported as a Hugging Face directory, RUN/hf. Without --steps or --minutes a run is one
pass over the text.
"""

import argparse
import dataclasses
import math
import os
import shutil
import signal
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail import settings
from dovetail.commands.generate import EXPORT, refuse_quantized
from dovetail.progress import Bar, Writing
from dovetail.recipes.options import Shape, Training
from dovetail.settings import Settings

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from dovetail.recipes.text import Prepared
    from dovetail_data import Pretrained, Rows
    from dovetail_models import Config, Decoder
    from dovetail_train import Eval

INTERRUPTED = 3  # exit code of a run that was asked to stop, saved, and can be resumed
MOST_PASSES = 4  # over the text, for --minutes: more would train on what is known by heart
EVALUATIONS = 8  # of the held-out loss in a run
EVALUATED_ROWS = 64  # of the held-out text, each time


def add(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments. One not given is absent, so that a resumed run keeps its own."""
    parser.add_argument("--out", type=Path, required=True, help="the run's directory")
    text = parser.add_argument_group("text")
    text.add_argument("--text", help="directory of UTF-8 text files (needed for a new run)")
    text.add_argument("--pattern", help="which files below it (**/*: all but hidden ones)")
    text.add_argument("--skip", nargs="+", help="names of folders to leave out")
    text.add_argument("--held-out", type=float, help="share of the files to hold out (0.05)")
    text.add_argument("--vocab-size", type=int, help="ids of the tokenizer (4096)")
    duration = parser.add_mutually_exclusive_group()
    duration.add_argument("--steps", type=int, help="optimizer steps in all")
    duration.add_argument(
        "--minutes", type=float, help=f"as many steps as fit, {MOST_PASSES} passes at the most"
    )
    devices = parser.add_argument_group("devices", "may differ when a run is resumed")
    devices.add_argument("--data", type=int, default=1, help="ways to split the batch (1)")
    devices.add_argument(
        "--fsdp", type=int, default=1, help="ways to split batch, parameters and optimizer (1)"
    )
    for title, kind in (("model", Shape), ("training", Training)):
        group = parser.add_argument_group(title)
        for item in dataclasses.fields(kind):
            group.add_argument(
                f"--{item.name.replace('_', '-')}",
                type=type(item.default),
                help=f"{item.metadata['help']} ({item.default})",
            )


def run(args: argparse.Namespace) -> int:
    """Prepares the text, trains, exports; returns 3 if it was asked to stop before the end."""
    given = {name: value for name, value in vars(args).items() if name not in _NOT_SETTINGS}
    out = args.out.resolve()
    refuse_quantized(out, "train")
    if _execute(_settings(given, out), out, data=args.data, fsdp=args.fsdp):
        print(f"Exported {out / EXPORT}. Try: dovetail generate {args.out} --prompt '...'")
        return 0
    print(f"Saved. Resume it with: dovetail train --out {args.out}", file=sys.stderr)
    return INTERRUPTED


_NOT_SETTINGS = {"command", "run", "parser", "out", "debug", "data", "fsdp"}


def _settings(given: dict[str, Any], out: Path) -> Settings:
    """The settings stored in `out`, which `given` must not contradict; or new ones, stored."""
    if "text" in given:
        given["text"] = str(Path(given["text"]).resolve())
    if "skip" in given:
        given["skip"] = tuple(given["skip"])
    if (out / settings.FILE).is_file():
        stored = settings.load(out)
        if differing := settings.differences(given, stored):
            raise ValueError(
                f"{str(out)!r} holds a run with other settings: {', '.join(differing)}; leave "
                "these options out to resume it, or start a new run with another --out"
            )
        return stored
    if "text" not in given:
        raise ValueError(
            f"{str(out)!r} holds no run to resume; a new one needs text: pass --text DIR"
        )
    created = settings.create(given)
    created.save(out)
    return created


def _execute(run: Settings, out: Path, *, data: int, fsdp: int) -> bool:
    """Does what is left of a run; False if a signal ended it early, its state saved."""
    from dovetail.recipes.language_model import llama_config, train
    from dovetail_checkpoint import on_signal
    from dovetail_data import pack, plan

    mesh = _mesh(data=data, fsdp=fsdp)
    prepared = _prepare(run, out)
    length, seed = run.training.length, run.training.seed
    config = llama_config(run.shape, prepared.tokenizer, length=length)
    rows = pack(prepared.train, length=length, seed=seed)
    steps = run.steps
    if steps is None:
        steps = _plan(run, config, rows, mesh)
        dataclasses.replace(run, steps=steps).save(out)
    print(plan(rows, steps=steps, global_batch=run.training.global_batch), flush=True)
    held_out = pack(prepared.held_out, length=length, seed=seed)
    evaluation = _evaluation(held_out, prepared.tokenizer, run.training, steps=steps)
    with on_signal(signal.SIGINT, signal.SIGTERM) as stop, Bar(steps=steps) as bar:
        model, result = train(
            config,
            rows,
            out,
            training=run.training,
            steps=steps,
            mesh=mesh,
            sinks=[bar],
            hooks=[evaluation],
            stop=stop.poll,
        )
    if not result.interrupted:
        _export(model, out)
    return not result.interrupted


def _mesh(*, data: int, fsdp: int) -> "Mesh":
    import jax

    from dovetail_train import make_mesh

    used, present = data * fsdp, jax.device_count()
    if used > present:
        raise ValueError(
            f"--data {data} × --fsdp {fsdp} needs {used} devices and there are {present}: "
            "lower one of them"
        )
    if used < present:
        print(f"Using {used} of {present} devices; --fsdp {present} uses all.", flush=True)
    return make_mesh(data=data, fsdp=fsdp, devices=jax.devices()[:used])


def _prepare(run: Settings, out: Path) -> "Prepared":
    from dovetail.recipes.text import find, prepare, split

    root = Path(run.text)
    files = find(root, pattern=run.pattern, skip=run.skip)
    train, held_out = split(files, root=root, held_out=run.held_out)
    print(f"{len(train)} files to train on, {len(held_out)} held out, from {root}", flush=True)
    with Writing() as writing:
        return prepare(
            train,
            held_out,
            out,
            vocab_size=run.vocab_size,
            workers=os.cpu_count() or 1,
            progress=writing,
        )


def _plan(run: Settings, config: "Config", rows: "Rows", mesh: "Mesh") -> int:
    """The number of steps of a new run: one pass over the text, or what fits run.minutes."""
    from dovetail.recipes.language_model import steps_in

    one_pass = math.ceil(len(rows) / run.training.global_batch)
    if run.minutes is None:
        return one_pass
    print("Timing a few steps to plan the run.", flush=True)
    fitting = steps_in(60 * run.minutes, config, rows, training=run.training, mesh=mesh)
    steps = min(fitting, MOST_PASSES * one_pass)
    print(
        f"{steps} steps: {steps / one_pass:.2f} passes over the text"
        + ("" if steps == fitting else f" (the time would fit {fitting})"),
        flush=True,
    )
    return steps


def _evaluation(rows: "Rows", tokenizer: "Pretrained", training: Training, *, steps: int) -> "Eval":
    """The loss, and bits per byte, of some held-out rows, a few times in the run."""
    from dovetail_data import batches, token_bytes
    from dovetail_train import BitsPerByte, Eval, lm_loss

    size = training.global_batch
    held_out = batches(rows, global_batch=size, seed=None, epochs=1)
    return Eval(
        list(islice(held_out, math.ceil(EVALUATED_ROWS / size))),
        every=max(1, steps // EVALUATIONS),
        metrics={"loss": lm_loss(), "bits_per_byte": BitsPerByte(token_bytes(tokenizer))},
    )


def _export(model: "Decoder", out: Path) -> None:
    """Writes `out`/hf with the tokenizer, in place of what an earlier end of this run wrote."""
    from dovetail_models import save

    if (out / EXPORT).exists():
        shutil.rmtree(out / EXPORT)
    save(model, out / EXPORT, like=out)

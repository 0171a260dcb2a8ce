# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Export a model as a bundle; verify, inspect and precompile bundles.

A bundle is a directory with programs, weights and the digest of each of them. It runs without the
source of the model. `dovetail serve` answers requests from a directory of bundles, and the actions
after export are those of `python -m dovetail_serve`.
"""

import argparse
import contextlib
import functools
import json
import logging
import time
from collections.abc import Iterator
from typing import Any

from dovetail_serve.bundle.folder import open_bundle
from dovetail_serve.command.cli import ACTIONS as OWN
from dovetail_serve.exporting.limits import LIMIT_S
from dovetail_serve.types import PLATFORMS
from dovetail_stack._command import DONE, add_action, add_json
from dovetail_stack.commands.arguments import add_model, add_new_directory, check_new
from dovetail_stack.model_directory import EXPORT, RUN_FILE, locate
from dovetail_stack.parsing import Parser
from dovetail_stack.processes import say

ACTIONS = ("verify", "inspect", "precompile")
OPTIONS = ("batch_sizes", "platforms", "limit_s")  # of both exports
# Written out here: the recipes import every library, and `inspect` needs none of them.
BATCH_SIZES = (1, 8, 64)
# Seconds between two lines of progress.
INTERVAL_S = 10.0
TOWERS, POOLINGS = ("images", "text"), ("model", "mean", "first", "last")


def add(parser: Parser) -> None:
    """Declares the export, and the library's own actions."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    add_action(actions, "export", _export)
    for name in ACTIONS:
        action = add_action(actions, name, OWN[name].declare)
        action.words.update(OWN[name].WORDS)
        action.set_defaults(act=OWN[name].run)


def run(args: argparse.Namespace) -> int:
    """Runs the action; returns its exit code."""
    code, output = args.act(args)
    if output:
        print(output)
    return code


def _export(parser: argparse.ArgumentParser) -> None:
    """Export an encoder, or a decoder for scoring, as a bundle.

    Images have logits or an embedding, texts an embedding, and tokens of a decoder their
    log-probabilities. A run of `dovetail train` is exported from its newest checkpoint, after
    each file of it is verified; the bundle then has the checkpoint's digest.

    The Pooling and Normalize of a sentence-transformers directory are followed, and other modules
    refused. An embed run has the mean, normalised. --pooling replaces the pooling alone.
    """
    add_model(parser)
    add_new_directory(parser)
    add = parser.add_argument
    add(
        "--batch-sizes",
        type=int,
        nargs="+",
        default=BATCH_SIZES,
        metavar="ROWS",
        help=f"numbers of rows with a program of their own ({' '.join(map(str, BATCH_SIZES))})",
    )
    add(
        "--platforms",
        nargs="+",
        choices=PLATFORMS,
        default=("cpu", "cuda", "tpu"),
        metavar="NAME",
        help=f"of {', '.join(PLATFORMS)} (cpu cuda tpu)",
    )
    add("--length", type=int, help="tokens of a row; a decoder needs it (as an encoder says)")
    add("--tower", choices=TOWERS, help="of a model with two")
    add("--pooling", choices=POOLINGS, help="of an encoder of text (as it says, or mean)")
    add(
        "--limit-s",
        type=float,
        default=LIMIT_S,
        metavar="SECONDS",
        help=f"longest trace or run of the model ({LIMIT_S:.0f}); a compilation takes 10 times it",
    )
    add("--dtype", choices=("float32", "bfloat16", "float16"), help="of all weights (unchanged)")
    add("--step", type=int, help="checkpoint of a run (the newest)")
    add_json(parser)
    parser.set_defaults(act=export)


def export(args: argparse.Namespace) -> tuple[int, str]:
    """Writes a bundle. Returns the exit code and its description."""
    check_new(args.out)
    say(f"Reading {args.model}, and exporting it for {', '.join(args.platforms)}.")
    with _progress():
        write = _from_run if (args.model / RUN_FILE).is_file() else _from_directory
        write(args, {name: getattr(args, name) for name in OPTIONS})
    bundle = open_bundle(args.out)
    manifest = bundle.manifest
    summary = {
        "out": str(args.out),
        "digest": bundle.digest,
        "provenance": dict(manifest.provenance),
        "platforms": [platform.name for platform in manifest.platforms],
        "batch_sizes": list(manifest.batch_sizes),
        "symbolic": manifest.symbolic is None,
        "symbolic_reason": manifest.symbolic,
    }
    return DONE, json.dumps(summary, indent=2) if args.json else _described(summary)


@contextlib.contextmanager
def _progress() -> Iterator[None]:
    """Says the step of an export that is running, every 10 seconds."""
    logger, handler = logging.getLogger("dovetail_serve.exporting"), _Progress()
    level, logger.propagate = logger.level, False
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = True


class _Progress(logging.Handler):
    """Says a message, unless the last one was a moment ago."""

    def __init__(self) -> None:
        super().__init__()
        self._last_s = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        if time.monotonic() - self._last_s >= INTERVAL_S:
            self._last_s = time.monotonic()
            message = record.getMessage()
            say(f"{message[:1].upper()}{message[1:]}.")


def _from_directory(args: argparse.Namespace, options: dict[str, Any]) -> None:
    from dovetail_models.hf.hub import resolve
    from dovetail_models.hf.sentences import MODULES
    from dovetail_stack.recipes.bundle import bundle_encoder

    if args.step is not None:
        raise ValueError(
            f"step must be that of a run of dovetail train, got step={args.step} for the directory "
            f"{str(args.model)!r}: leave it out"
        )
    model = resolve(args.model)
    # The config.json of sentence-transformers may be in the directory of its Transformer.
    listed = (model / MODULES).is_file()
    bundle_encoder(
        model if listed else locate(model),
        args.out,
        length=args.length,
        tower=args.tower,
        pooling=args.pooling,
        dtype=args.dtype,
        **options,
    )


def _from_run(args: argparse.Namespace, options: dict[str, Any]) -> None:
    """Exports a checkpoint; the shape of its model is that of the run's export."""
    from dovetail_models import TextEncoder, abstract, servable
    from dovetail_stack import settings
    from dovetail_stack.recipes.bundle_run import bundle_run
    from dovetail_stack.recipes.record_options import Tuning

    if args.dtype is not None:
        raise ValueError(
            f"a run must keep the dtype of its checkpoint, got dtype={args.dtype!r}: leave it out, "
            f"or name its export {args.model / EXPORT}"
        )
    run = settings.load(args.model)
    training = run.training
    if isinstance(training, Tuning) and training.lora_rank:
        raise ValueError(
            "a run must have whole models in its checkpoints, got one of adapters of rank "
            f"{training.lora_rank}: name its export {args.model / EXPORT}"
        )
    model = abstract(locate(args.model))
    call: dict[str, Any] = {"length": args.length, "tower": args.tower, "pooling": args.pooling}
    if isinstance(run, settings.Embed):
        if not isinstance(model, TextEncoder):
            raise ValueError(
                f"a run of embed must have an encoder of text, got a {type(model).__name__}: name "
                f"its export {args.model / EXPORT} to score tokens"
            )
        call |= {"pooling": args.pooling or "mean", "normalize": True}  # as its loss had them
    bundle_run(
        args.model,
        args.out,
        model=model,
        serve=functools.partial(servable, **call),
        step=args.step,
        ema=training.ema > 0,
        **options,
    )


def _described(summary: dict[str, Any]) -> str:
    sizes = ", ".join(map(str, summary["batch_sizes"]))
    every = "and any other" if summary["symbolic"] else f"alone: {summary['symbolic_reason']}"
    lines = [
        f"Wrote {summary['out']}: {summary['digest']}",
        f"platforms    {', '.join(summary['platforms'])}",
        f"batch sizes  {sizes}, {every}",
        *(f"{name:<12} {value}" for name, value in summary["provenance"].items()),
        f"Try: dovetail bundle inspect {summary['out']}",
    ]
    return "\n".join(lines)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The action `inspect`: facts about a corpus, and its rows."""

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path, PurePath
from typing import Any, get_args

from dovetail_data._command import add_json
from dovetail_data.command.write import tokenizer_of
from dovetail_data.corpus.corpus import Corpus
from dovetail_data.encode.contrast import contrasted
from dovetail_data.rows.contrast_rows import contrasts
from dovetail_data.rows.image_rows import images
from dovetail_data.rows.pack import Method, pack
from dovetail_data.rows.pair_rows import pairs
from dovetail_data.rows.prompt_rows import prompts
from dovetail_data.rows.rows import Rows
from dovetail_data.showing import summary as _summary
from dovetail_data.showing.inspecting import show
from dovetail_data.sources._remote import located

_LENGTH = 2048


def declare(parser: argparse.ArgumentParser) -> None:
    """Describe a corpus: origin, sizes, lengths and fill. With --row or --rows, show its rows.

    The rows are those of training: packed text and chats, pairs, prompts, contrasts or images.
    Trained tokens are green, or between ⟦ and ⟧ without color. Special tokens are between ⟨ and ⟩.
    """
    add = parser.add_argument
    add("corpus", type=located, metavar="DIR", help="directory or URL of the corpus")
    add_packing(parser)
    add("--row", type=int, nargs="+", default=[], metavar="N", help="numbers of rows to show")
    add("--rows", type=int, default=0, metavar="K", help="number of first rows to show (0)")
    add("--tokens", action="store_true", help="put a bar between tokens")
    add("--html", type=Path, metavar="FILE", help="write the rows as a page for a browser")
    add_json(parser)
    add("--tokenizer", metavar="PATH", help="tokenizer to decode with (that of the corpus)")
    add(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="when to use color (auto)",
    )


def add_packing(parser: argparse.ArgumentParser) -> None:
    """Adds the options of packing: --length, --method and --seed."""
    add = parser.add_argument
    most = "the longest of pairs, prompts and contrasts"
    add("--length", type=int, metavar="S", help=f"slots per row ({_LENGTH}, or {most})")
    add("--method", choices=get_args(Method), default="best_fit", help="packing method (best_fit)")
    add("--seed", type=int, default=0, help="seed of the packing (0)")


def run(args: argparse.Namespace, progress: object) -> str:
    """Returns the output of the action."""
    corpus = Corpus(args.corpus)
    rows, method = rows_of(corpus, args)
    numbers = [*args.row, *range(min(args.rows, len(rows)))]
    for row in numbers:
        if not 0 <= row < len(rows):
            raise ValueError(
                f"--row must be in [0, {len(rows)}): got --row {row}. Leave --row and --rows out "
                "to see what there is."
            )
    if numbers:
        return _show(rows, numbers, args)
    if args.html:
        raise ValueError(
            f"a page must have rows: got --html {args.html} alone. Pass --rows 20 too."
        )
    facts = _summary.facts(corpus)
    if corpus.vocab_size is not None:
        facts["lengths"] = _summary.lengths(corpus)
        facts["packing"] = _summary.packing(rows, method=method)
    return json.dumps(facts, indent=2) if args.json else _summary.described(facts)


def rows_of(corpus: Corpus, args: argparse.Namespace) -> tuple[Rows, str]:
    """Returns the rows that training sees of a corpus, and the name of their method."""
    if "image" in corpus.fields:
        return images(corpus), "images"
    length = args.length
    if contrasted(corpus.manifest):
        longest = int(corpus.lengths.max())
        return contrasts(corpus, length=longest if length is None else length), "contrasts"
    if "chosen" in corpus.fields:
        longest = int(corpus.lengths.max()) - 1
        return pairs(corpus, length=longest if length is None else length), "pairs"
    if "extra" in corpus.fields:
        longest = int(corpus.lengths.max())
        return prompts(corpus, length=longest if length is None else length), "prompts"
    slots = _LENGTH if length is None else length
    return pack(corpus, length=slots, method=args.method, seed=args.seed), args.method


def _show(rows: Rows, numbers: list[int], args: argparse.Namespace) -> str:
    tokenizer = tokenizer_of(args.tokenizer) if args.tokenizer else None
    shown = show(rows, numbers, tokenizer=tokenizer)
    if args.html:
        args.html.write_text(shown.html(title=PurePath(args.corpus).name), encoding="utf-8")
        return str(args.html)
    if args.json:
        return json.dumps(dataclasses.asdict(shown), indent=2, default=_size)
    return shown.text(color=_colored(args.color), borders=args.tokens)


def _colored(asked: str) -> bool:
    if asked != "auto":
        return asked == "always"
    # https://no-color.org: set and not empty.
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _size(png: Any) -> str:
    return f"PNG of {len(png)} bytes"

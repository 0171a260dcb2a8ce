# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Quantize a decoder to 8 or 4 bits, with a report of what that saved and cost.

8 bits round to nearest. 4 bits calibrate (gptq) on text for which the model is meant: --text.
Embedding and head stay float, because they lose most; --also embed lm_head quantizes them.
With text, some of its files are held out to measure the result. OUT is written whole or not at
all, and `dovetail generate` takes it.
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from dovetail_stack._command import add_json
from dovetail_stack.commands.arguments import add_model, add_new_directory, check_new
from dovetail_stack.model_directory import locate, refuse_quantized
from dovetail_stack.parsing import Parser
from dovetail_stack.progress import Writing
from dovetail_stack.recipes.options import PATTERN_HELP

if TYPE_CHECKING:
    from dovetail_models import Decoder
    from dovetail_stack.recipes.quantization import Rows

LENGTH = 512  # tokens of a row, where the model is made for as many


def add(parser: Parser) -> None:
    """Declares the arguments."""
    parser.words["skip"] = "--float"
    add_model(parser)
    add_new_directory(parser)
    parser.add_argument("--bits", type=int, choices=(8, 4), default=8, help="bits of a weight (8)")
    parser.add_argument(
        "--group",
        type=int,
        help="inputs per scale (4 bits: the largest of 128, 64, 32, 16 to divide; 8: all)",
    )
    parser.add_argument(
        "--method",
        choices=("absmax", "gptq", "awq"),
        help="absmax rounds to nearest, the others calibrate (8 bits: absmax; 4: gptq)",
    )
    parser.add_argument(
        "--also",
        nargs="+",
        default=(),
        metavar="PATTERN",
        help="embedding and head to quantize too, such as embed lm_head (else they stay float)",
    )
    parser.add_argument(
        "--float",
        dest="floats",
        nargs="+",
        default=(),
        metavar="PATTERN",
        help="modules to leave in float, such as lm_head or 'layers.0.**'",
    )
    text = parser.add_argument_group("text")
    text.add_argument(
        "--text", type=Path, metavar="DIR", help="directory of UTF-8 text, to calibrate and measure"
    )
    text.add_argument("--pattern", default="**/*", metavar="GLOB", help=PATTERN_HELP)
    text.add_argument(
        "--rows", type=int, default=128, help="rows for calibration; as many are held out (128)"
    )
    text.add_argument("--length", type=int, help=f"tokens of a row ({LENGTH}, or the model's most)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Reads, calibrates, measures and writes. Checks all options before it reads weights."""
    from dovetail_data import hold_out_files
    from dovetail_models import abstract, load
    from dovetail_quant import plan_bits
    from dovetail_stack import quantized_directory
    from dovetail_stack.recipes import quantization
    from dovetail_stack.recipes.text import select

    path = locate(args.model)
    refuse_quantized(path, "quantize")
    check_new(args.out)
    outline = abstract(path)
    length = _length(args, outline.config.max_length)
    plan = plan_bits(
        outline,
        bits=args.bits,
        group=args.group,
        method=args.method,
        also=args.also,
        skip=args.floats,
    )
    if args.text is None:
        quantization.check_method(plan)
    else:
        selection = select(args.text, pattern=args.pattern)
        hold_out_files(selection.files, root=args.text, share=quantization.HELD_OUT)
        if selection.counts:
            print(f"{selection} below {args.text}", file=sys.stderr)
    with tqdm(total=4, unit="step", desc="read") as bar, tempfile.TemporaryDirectory() as scratch:
        model = load(path)
        rows = None if args.text is None else _rows(args, path, model, Path(scratch), length)
        bar.update()
        bar.set_description("calibrate" if plan.calibrates else "round")
        quantized, starved = quantization.quantize(model, plan, rows)
        bar.update()
        bar.set_description("measure")
        receipt = quantization.measure(model, quantized, plan, rows, starved=starved)
        bar.update()
        bar.set_description("write")
        quantized_directory.save(quantized, receipt, args.out, like=path)
        bar.update()
    if args.json:
        print(json.dumps({"out": str(args.out), **receipt.to_json()}, indent=2))
        return 0
    rule = r"write \('([\w.]+)', Spec\(\)\) to quantize it"  # the words of the library
    print(re.sub(rule, r"--also \1 quantizes it", str(receipt)), end="")
    print(f"Wrote {args.out}. Try: dovetail generate {args.out} --prompt '...'")
    return 0


def _length(args: argparse.Namespace, most: int) -> int:
    """Returns the number of tokens in a row."""
    length = min(LENGTH, most) if args.length is None else args.length
    if not 1 <= length <= most or args.rows < 1:
        raise ValueError(
            f"rows have 1 to {most} tokens in this model, and there is at least one; got --length "
            f"{length} --rows {args.rows}"
        )
    return length


def _rows(
    args: argparse.Namespace, path: Path, model: "Decoder", scratch: Path, length: int
) -> "Rows":
    from dovetail_data import Pretrained, check_ends
    from dovetail_stack.recipes import quantization

    tokenizer = Pretrained(path / "tokenizer.json")
    check_ends(tokenizer, vocab_size=model.config.vocab_size)
    with Writing() as writing:
        return quantization.read_rows(
            args.text,
            tokenizer,
            scratch,
            vocab_size=model.config.vocab_size,
            length=length,
            rows=args.rows,
            pattern=args.pattern,
            progress=writing,
        )

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Continue a prompt with a trained model, token by token.

The model is a run of `dovetail train`, a Hugging Face directory of a supported family with its
tokenizer.json, or the output of `dovetail quantize`.
"""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail_stack._command import add_json

if TYPE_CHECKING:
    from dovetail_models import Decoder

EXPORT = "hf"  # where `dovetail train` exports, inside the run
QUANTIZED = "quantization.json"  # what a directory of `dovetail quantize` has


def add(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    add_model(parser)
    parser.add_argument("--prompt", required=True, help="the text to continue")
    parser.add_argument("--max-tokens", type=int, default=128, help="most tokens to add (128)")
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        help="divisor of the logits; 0: the likeliest (0)",
    )
    parser.add_argument(
        "--top-p", type=float, default=1.0, help="share of probability to sample from (1)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling (0)")
    add_json(parser)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declares the input model."""
    parser.add_argument(
        "model", type=Path, metavar="RUN", help="a run, or a Hugging Face directory"
    )


def add_new_directory(parser: argparse.ArgumentParser) -> None:
    """Declares the output directory."""
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="a directory that does not exist"
    )


def run(args: argparse.Namespace) -> int:
    """Streams the prompt and its continuation. With --json prints both as one object at the end."""
    from dovetail_data import Pretrained
    from dovetail_stack.recipes.generation import generate

    directory = locate(args.model)
    tokenizer = Pretrained(directory / "tokenizer.json")
    pieces = generate(
        _load(directory),
        tokenizer,
        args.prompt,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        seed=args.seed,
    )
    if args.json:
        print(json.dumps({"prompt": args.prompt, "continuation": "".join(pieces)}, indent=2))
        return 0
    print(args.prompt, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
    return 0


def _load(directory: Path) -> "Decoder":
    """Loads the decoder of a directory, quantized or not."""
    if (directory / QUANTIZED).is_file():
        from dovetail_stack.recipes.quantization import load
    else:
        from dovetail_models import load
    return load(directory)


def refuse_quantized(directory: Path, command: str) -> None:
    """Raises ValueError for an output of `dovetail quantize`."""
    if (directory / QUANTIZED).is_file():
        raise ValueError(
            f"{command} needs the weights that were not quantized yet, got {str(directory)!r} with "
            f"{QUANTIZED}: name the directory that it was made from"
        )


def locate(path: Path) -> Path:
    """Returns the Hugging Face directory: `path` itself, or the export of the run `path`."""
    for directory in (path, path / EXPORT):
        if (directory / "config.json").is_file():
            return directory
    if (path / "run.json").is_file():
        raise ValueError(
            f"the run {str(path)!r} has not exported a model yet: let it finish with "
            f"dovetail train --out {path}"
        )
    raise ValueError(
        f"a model is a directory with config.json, or a run with {EXPORT}/config.json; "
        f"got {str(path)!r}: pass a finished run of dovetail train, or a Hugging Face directory"
    )

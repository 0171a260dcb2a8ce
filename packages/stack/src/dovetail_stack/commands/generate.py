# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Continue a prompt with a trained model, token by token, or a file of prompts.

The model is a run of `dovetail train`, a Hugging Face directory of a supported family with its
tokenizer.json, or the output of `dovetail quantize`.

Sampling is greedy unless options say otherwise. A directory may suggest others in its
generation_config.json, which are shown, and used with --directory-sampling.

--prompts takes lines {"prompt": "..."}, or {"messages": [...]} for the model's chat template. A
line may have options of its own, named as here with underscores. Line i, from 0, has the seed
SEED + i. --out gets a line {"index", "text", "tokens", "finish_reason", "seed", ...} for each. The
same command resumes it.
"""

import argparse
import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail_stack._command import DONE, FAILED, add_json
from dovetail_stack.processes import say

if TYPE_CHECKING:
    from dovetail_models import Decoder
    from dovetail_stack.prompts import Request
    from dovetail_stack.results import Results

EXPORT = "hf"  # where `dovetail train` exports, inside the run
ROUNDED = 256  # tokens; the step of the length for which programs are compiled
QUANTIZED = "quantization.json"  # what a directory of `dovetail quantize` has


def add(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments."""
    add_model(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", help="the text to continue")
    source.add_argument("--prompts", type=Path, metavar="FILE", help="JSON lines of prompts")
    parser.add_argument("--out", type=Path, metavar="FILE", help="file of results, for --prompts")
    _add_sampling(parser)
    parser.add_argument(
        "--max-rows", type=int, default=64, help="most prompts at the same time, of --prompts (64)"
    )
    parser.add_argument(
        "--invariant",
        action="store_true",
        help="the same bits in any company, for --prompts; slower",
    )
    add_json(parser)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    """Declares the fields of `dovetail_infer.Sampling`."""
    for name, kind, default, text in (
        ("max-tokens", int, 128, "most tokens to add (128)"),
        ("temperature", float, None, "divisor of the logits; 0: the likeliest (0)"),
        ("top-k", int, None, "sample from the k likeliest tokens (all)"),
        ("top-p", float, None, "share of probability to sample from (1)"),
        ("min-p", float, None, "least share of the likeliest token's probability (0)"),
        ("repetition-penalty", float, None, "divisor for tokens that were there; 1: none (1)"),
        ("frequency-penalty", float, 0.0, "subtracted for each earlier occurrence (0)"),
        ("presence-penalty", float, 0.0, "subtracted for tokens that were generated (0)"),
        ("min-tokens", int, 0, "fewest tokens to add (0)"),
        ("seed", int, 0, "seed of the sampling (0)"),
        ("logprobs", int, None, "give the log-probabilities of the K likeliest (none)"),
        ("prompt-logprobs", int, None, "the same for the tokens of the prompt (none)"),
    ):
        parser.add_argument(f"--{name}", type=kind, default=default, help=text)
    parser.add_argument(
        "--directory-sampling",
        action="store_true",
        help="sample as generation_config.json suggests; typed options replace it",
    )
    parser.add_argument(
        "--logit-bias",
        type=_bias,
        action="append",
        default=[],
        metavar="ID=VALUE",
        help="added to the logit of a token; -inf bans it; may be repeated",
    )
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before it; may be repeated"
    )
    parser.add_argument(
        "--stop-token-ids", type=int, nargs="+", default=[], metavar="ID", help="end at these ids"
    )
    parser.add_argument(
        "--ignore-eos", action="store_true", help="do not end at the end-of-text token"
    )


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    return int(token), float(value)


def add_model(parser: argparse.ArgumentParser) -> None:
    """Declares the input model."""
    parser.add_argument(
        "model", type=Path, metavar="RUN", help="a run, a Hugging Face directory, or a Hub id"
    )
    add_accepted(parser)


def add_accepted(parser: argparse.ArgumentParser) -> None:
    """Declares what is accepted in a directory; `cli.main` hands it to `accepting`."""
    for name, metavar, text in (
        ("allow", "KEY", "an unknown key of config.json to accept; may be repeated"),
        ("ignore", "PATTERN", "extra tensors to leave out, as '**.inv_freq'; may be repeated"),
    ):
        parser.add_argument(f"--{name}", action="append", default=[], metavar=metavar, help=text)


def add_new_directory(parser: argparse.ArgumentParser) -> None:
    """Declares the output directory."""
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="a directory that does not exist"
    )


def run(args: argparse.Namespace) -> int:
    """Streams a prompt and its continuation, or writes a file of results.

    With --json prints one object at the end.
    """
    if (args.prompts is None) != (args.out is None):
        args.parser.error("--prompts FILE and --out FILE go together")
    return _continue(args) if args.prompts is None else _write(args)


def _options(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Returns the options of `Sampling`, and says what the directory suggests instead."""
    from dovetail_stack.prompts import OPTIONS
    from dovetail_stack.recipes.engine import GREEDY, sampling_of, suggestion

    options = {name: getattr(args, name) for name in OPTIONS}
    open_ones = [name for name in GREEDY if options[name] is None]
    if args.directory_sampling:
        theirs = sampling_of(directory)
        options |= {name: getattr(theirs, name) for name in open_ones}
    else:
        options |= {name: GREEDY[name] for name in open_ones}
        if line := suggestion(directory, {name: GREEDY[name] for name in open_ones}):
            say(line)
    return {**options, "logit_bias": dict(args.logit_bias)}


def _continue(args: argparse.Namespace) -> int:
    """Streams one prompt."""
    from dovetail_data import Pretrained
    from dovetail_infer import Sampling
    from dovetail_stack.prompts import check_ids, described
    from dovetail_stack.recipes.engine import end_ids, engine, load

    directory = locate(args.model)
    sampling = Sampling(**_options(args, directory))
    tokenizer, decoder = Pretrained(directory), load(directory)
    bos = [] if tokenizer.bos_id is None else [tokenizer.bos_id]
    ids = [*bos, *tokenizer.encode([args.prompt])[0].ids.tolist()]
    check_ids(ids, tokenizer, decoder.config.vocab_size, where="--prompt")
    length = _length(1 + len(ids) + args.max_tokens, decoder)
    with (
        engine(
            decoder,
            tokenizer=tokenizer,
            eos_ids=end_ids(directory, decoder.config.vocab_size),
            max_length=length,
            max_rows=1,
        ) as opened,
        opened.stream(args.prompt, sampling) as stream,
    ):
        if not args.json:
            print(args.prompt, end="", flush=True)
        for piece in stream:
            if not args.json:
                print(piece.text, end="", flush=True)
    completion = stream.completion
    if args.json:
        print(json.dumps({"prompt": args.prompt, **described(completion)}, indent=2))
    else:
        print()
    if completion.error is not None:
        raise ValueError(completion.error)
    return DONE


def _length(tokens: int, decoder: "Decoder") -> int:
    """Returns the longest request: `tokens` rounded up, since programs depend on it."""
    return min(-(-tokens // ROUNDED) * ROUNDED, decoder.config.kv_length)


def _write(args: argparse.Namespace) -> int:
    """Generates what the file of results lacks."""
    from dovetail_stack import prompts
    from dovetail_stack.results import Results

    begun_s, directory = time.monotonic(), locate(args.model)
    model = f"{prompts.digest_of(directory)} invariant={args.invariant}"
    requests = prompts.read(args.prompts, _options(args, directory), model=model)
    with Results(args.out, [request.digest for request in requests]) as results:
        before = len(results.done)
        missing = [request for request in requests if request.index not in results.done]
        reasons, tokens = _generate(args, directory, missing, results) if missing else ({}, 0)
    summary = {
        "out": str(args.out),
        "prompts": len(requests),
        "skipped": before,
        "written": len(missing),
        "tokens": tokens,
        "finish_reasons": reasons,
        "seconds": time.monotonic() - begun_s,
    }
    if args.json:
        print(json.dumps(summary, indent=2))
    else:
        ends = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        print(
            f"Wrote {len(missing)} results to {args.out}, {before} were there: {tokens:,} tokens"
            + (f" ({ends})" if ends else "")
        )
    if errors := reasons.get("error", 0):
        say(f"Results with an error: {errors}. To try again, delete their lines and resume.")
    return FAILED if errors else DONE


def _generate(
    args: argparse.Namespace, directory: Path, requests: "list[Request]", results: "Results"
) -> tuple[dict[str, int], int]:
    """Appends the results of these requests. Returns their ends and the number of new tokens."""
    from dovetail_data import Pretrained
    from dovetail_stack import prompts
    from dovetail_stack.progress import Prompts
    from dovetail_stack.recipes.engine import end_ids, engine, load

    tokenizer, decoder = Pretrained(directory), load(directory)
    config = decoder.config
    sizes = {"max_length": config.kv_length, "vocab_size": config.vocab_size}
    ids = prompts.encode(requests, tokenizer, directory, **sizes)
    lengths = [len(i) + r.sampling.max_tokens for i, r in zip(ids, requests, strict=True)]
    reasons: Counter[str] = Counter()
    tokens = 0
    before = len(results.done)
    with (
        engine(
            decoder,
            tokenizer=tokenizer,
            eos_ids=end_ids(directory, decoder.config.vocab_size),
            max_length=_length(max(lengths), decoder),
            max_rows=args.max_rows,
            invariant=args.invariant,
        ) as opened,
        Prompts(len(requests) + before, done=before) as progress,
    ):
        for window in prompts.generated(opened.generate, requests, ids):
            results.write({r.index: {**r.source, **prompts.described(c)} for r, c in window})
            reasons.update(c.finish_reason for _, c in window)
            new = sum(len(c.tokens) for _, c in window)
            progress(len(window), new)
            tokens += new
    return dict(reasons), tokens


def refuse_quantized(directory: Path, command: str) -> None:
    """Raises ValueError for an output of `dovetail quantize`."""
    if (directory / QUANTIZED).is_file():
        raise ValueError(
            f"{command} needs the weights that were not quantized yet, got {str(directory)!r} with "
            f"{QUANTIZED}: name the directory that it was made from"
        )


def locate(path: Path) -> Path:
    """Returns the Hugging Face directory: `path`, the export of the run `path`, or a Hub id's."""
    from dovetail_models.hf.foreign import conversion
    from dovetail_models.hub import resolve

    path = resolve(path)
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
        f"got {str(path)!r}: "
        + (conversion(path) or "pass a finished run of dovetail train, or a Hugging Face directory")
    )

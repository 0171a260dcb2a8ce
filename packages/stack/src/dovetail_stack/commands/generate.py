# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Continue a prompt with a trained model, token by token, or a file of prompts.

The model is a run of `dovetail train`, a Hugging Face directory of a supported family with its
tokenizer.json, or the output of `dovetail quantize`.

Sampling is greedy unless options say otherwise. A directory may suggest others in its
generation_config.json, which are shown, and used with --directory-sampling.

--prompts takes lines {"prompt": "..."}, or {"messages": [...]} for the model's chat template, or
that of --template, whose end of a turn then ends the answers too. A line may have options of its
own, named as here with underscores. Each line has a seed of its own, folded from SEED and its
index. --out gets a line {"index", "text", "tokens", "finish_reason", "seed", ...} for each. The
same command resumes it.
"""

import argparse
import hashlib
import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from dovetail_stack._command import DONE, FAILED, add_json
from dovetail_stack.commands.arguments import add_model, add_template
from dovetail_stack.model_directory import locate
from dovetail_stack.parsing import Parser
from dovetail_stack.processes import say
from dovetail_stack.recipes.record_options import Dialogue

if TYPE_CHECKING:
    from dovetail_infer.batch import Results
    from dovetail_models import Decoder

ROUNDED = 256  # tokens; the step of the length for which programs are compiled
# Files of a model whose change gives other results.
SUFFIXES = (".json", ".jinja", ".safetensors")


def add(parser: Parser) -> None:
    """Declares the arguments."""
    add_model(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="the text to continue")
    source.add_argument("--prompts", type=Path, metavar="FILE", help="JSON lines of prompts")
    parser.add_argument("--out", type=Path, metavar="FILE", help="file of results, for --prompts")
    add_template(parser)
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
    parser.add_argument(
        "--keep-special-tokens",
        action="store_false",
        dest="skip_special_tokens",
        help="write special tokens, such as <|channel|>, into the text",
    )


def _bias(text: str) -> tuple[int, float]:
    token, _, value = text.partition("=")
    return int(token), float(value)


def run(args: argparse.Namespace) -> int:
    """Streams a prompt and its continuation, or writes a file of results.

    With --json prints one object at the end.
    """
    if (args.prompts is None) != (args.out is None):
        args.parser.error("--prompts FILE and --out FILE go together")
    if args.prompts is None and (args.template or args.date):
        args.parser.error("--template and --date are for --prompts FILE with messages")
    return _continue(args) if args.prompts is None else _write(args)


def _options(args: argparse.Namespace, directory: Path) -> dict[str, Any]:
    """Returns the options of `Sampling`, and says what the directory suggests instead."""
    from dovetail_infer.batch.requests import OPTIONS
    from dovetail_stack.recipes.engine import GREEDY, suggestion
    from dovetail_stack.recipes.sampling import sampling_of

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
    from dovetail_stack.prompts import check_ids
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
    if completion.error is not None:
        print("" if args.json else "\n", end="")
        raise RuntimeError(completion.error)
    if args.json:
        print(json.dumps({"prompt": args.prompt, **completion.to_json()}, indent=2))
    else:
        print()
    return DONE


def _length(tokens: int, decoder: "Decoder") -> int:
    """Returns the longest request: `tokens` rounded up, since programs depend on it."""
    return min(-(-tokens // ROUNDED) * ROUNDED, decoder.config.kv_length)


def _write(args: argparse.Namespace) -> int:
    """Generates what the file of results lacks."""
    from dovetail_infer import Sampling
    from dovetail_infer.batch import Results, read
    from dovetail_models.hf.directory import checksums
    from dovetail_stack.recipes.dialogue import template_of

    begun_s, directory = time.monotonic(), locate(args.model)
    files = "".join(f"{k} {v}\n" for k, v in checksums(directory, suffixes=SUFFIXES).items())
    model = f"{hashlib.sha256(files.encode()).hexdigest()} invariant={args.invariant}"
    if args.template or args.date:
        dialogue = Dialogue(template=args.template, date=args.date)
        model += f" template={template_of(directory, dialogue).fingerprint}"
    requests = read(args.prompts, Sampling(**_options(args, directory)), model=model)
    with Results(args.out, requests) as results:
        before, missing = len(results.done), len(results.missing)
        reasons, tokens = _generate(args, directory, results) if missing else ({}, 0)
    summary = {
        "out": str(args.out),
        "prompts": len(requests),
        "skipped": before,
        "written": missing,
        "tokens": tokens,
        "finish_reasons": reasons,
        "seconds": time.monotonic() - begun_s,
    }
    if args.json:
        print(json.dumps(summary, indent=2))
    else:
        ends = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        print(
            f"Wrote {missing} results to {args.out}, {before} were there: {tokens:,} tokens"
            + (f" ({ends})" if ends else "")
        )
    if errors := reasons.get("error", 0):
        say(f"Results with an error: {errors}. To try again, delete their lines and resume.")
    return FAILED if errors else DONE


def _generate(
    args: argparse.Namespace, directory: Path, results: "Results"
) -> tuple[dict[str, int], int]:
    """Appends what is missing. Returns the ends of the results and the number of new tokens."""
    from dovetail_data import Pretrained
    from dovetail_infer import batch
    from dovetail_stack.prompts import encode
    from dovetail_stack.recipes.dialogue import template_of, turn_ends
    from dovetail_stack.recipes.engine import end_ids, engine, load

    dialogue, requests = Dialogue(template=args.template, date=args.date), results.missing
    tokenizer, decoder = Pretrained(directory), load(directory)
    config = decoder.config
    sizes = {"max_length": config.kv_length, "vocab_size": config.vocab_size}
    ids = encode(requests, tokenizer, directory, dialogue=dialogue, **sizes)
    ends = end_ids(directory, config.vocab_size)
    if args.template:
        turns = turn_ends(template_of(directory, dialogue), tokenizer)
        ends = tuple({*(ends or (tokenizer.eos_id,)), *turns})
    lengths = [len(i) + r.sampling.max_tokens for i, r in zip(ids, requests, strict=True)]
    reasons: Counter[str] = Counter()
    tokens, begun_s, before = 0, time.monotonic(), len(results.done)
    with (
        engine(
            decoder,
            tokenizer=tokenizer,
            eos_ids=ends,
            max_length=_length(max(lengths), decoder),
            max_rows=args.max_rows,
            invariant=args.invariant,
        ) as opened,
        tqdm(desc="generate", total=len(requests) + before, initial=before, unit="prompt") as bar,
    ):
        for pairs in batch.generate(opened, results, prompts=ids):
            reasons.update(completion.finish_reason for _, completion in pairs)
            tokens += sum(len(completion.tokens) for _, completion in pairs)
            rate = tokens / max(time.monotonic() - begun_s, 1e-9)
            bar.set_postfix_str(f"{rate:,.0f} tokens/s", refresh=False)
            bar.update(len(pairs))
    return dict(reasons), tokens

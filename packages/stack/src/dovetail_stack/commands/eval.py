# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Measure a model: bits per byte, multiple choice, tasks of lm-evaluation-harness.

The model is a run of `dovetail train`, a Hugging Face directory, or the output of `dovetail
quantize`. A run alone is measured by its own held-out rows, as during training.

--text measures every row of other files, in rows as in training. Beside it stand gzip and xz, if
the files are small. --choices takes lines {"prompt": "...", "choices": ["...", "..."],
"answer": 0}, or {"messages": [...], ...} for the chat template: acc counts the likeliest choice,
acc_norm the likeliest per character. --tasks takes names of tasks, whose data lm-eval fetches
unless they are in the folder of --include-path.
"""

import argparse
import difflib
import functools
import glob
import itertools
import json
import math
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from dovetail_stack._command import DONE, add_json
from dovetail_stack.commands.arguments import add_model, add_template
from dovetail_stack.model_directory import locate
from dovetail_stack.parsing import Parser
from dovetail_stack.processes import say
from dovetail_stack.progress import Writing
from dovetail_stack.quickstart.compression import compressors
from dovetail_stack.recipes.options import PATTERN_HELP
from dovetail_stack.recipes.record_options import Dialogue

if TYPE_CHECKING:
    from dovetail_data import Pretrained
    from dovetail_models import Config, Decoder

LENGTH = 512  # tokens of a row of text, where the model is made for as many
ROWS = 8  # of a batch: on a CPU more are no faster
COMPRESSED_BYTES = 1 << 22  # xz takes a second for a megabyte


def add(parser: Parser) -> None:
    """Declares the arguments."""
    add_model(parser)
    parser.add_argument(
        "--text", type=Path, metavar="DIR|FILE", help="text to measure (a run: its held-out rows)"
    )
    parser.add_argument("--pattern", metavar="GLOB", help=PATTERN_HELP)
    parser.add_argument("--choices", type=Path, metavar="FILE", help="JSON lines of questions")
    parser.add_argument(
        "--tasks", metavar="NAME,...", help="tasks of lm-eval; needs dovetail-stack[eval]"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="first N examples of a task (all)")
    parser.add_argument(
        "--include-path", type=Path, metavar="DIR", help="folder with YAML files of tasks"
    )
    parser.add_argument(
        "--length",
        type=int,
        metavar="TOKENS",
        help=f"of a row of text (the run's, or {LENGTH}); of a question or example (the model's)",
    )
    parser.add_argument("--rows", type=int, default=ROWS, metavar="N", help=f"of a batch ({ROWS})")
    add_template(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Checks all that is asked for, loads the model and measures it."""
    from dovetail_data import Pretrained, check_ends
    from dovetail_models.hf.hub import resolve
    from dovetail_stack import choices
    from dovetail_stack.recipes.dialogue import template_of
    from dovetail_stack.recipes.engine import config_of, load

    _check(args)
    root = resolve(args.model)
    directory = locate(root)
    manager = _tasks(args) if args.tasks else None
    config, tokenizer = config_of(directory), Pretrained(directory)
    check_ends(tokenizer, vocab_size=config.vocab_size)
    if args.length is not None and args.length > config.kv_length:
        raise ValueError(
            f"length must be at most the {config.kv_length} positions that the model was made for, "
            f"got length={args.length}: pass length={config.kv_length}"
        )
    with ExitStack() as stack:
        text = questions = None
        if args.choices:
            dialogue = Dialogue(template=args.template, date=args.date)
            sizes = {"length": args.length or config.kv_length, "vocab_size": config.vocab_size}
            template = functools.partial(template_of, directory, dialogue)
            questions = choices.read(args.choices, tokenizer, template, **sizes)
        if args.text:
            text = _text(args, tokenizer, config, stack)
        elif not (args.choices or args.tasks):
            text = _held_out(args, root)
        model = load(directory)
        result: dict[str, Any] = {"model": str(args.model)}
        if text is not None:
            result["text"] = _measured(model, tokenizer, *text)
        if questions is not None:
            result["choices"] = _chosen(args, model, tokenizer, questions)
        if manager is not None:
            result["tasks"] = _evaluated(args, model, tokenizer, directory, manager)
    print(json.dumps(result, indent=2) if args.json else "\n".join(_lines(result)))
    return DONE


def _check(args: argparse.Namespace) -> None:
    """Exits unless the options fit together."""
    for name, needs in (
        ("pattern", "text"),
        ("limit", "tasks"),
        ("include_path", "tasks"),
        ("template", "choices"),
        ("date", "choices"),
    ):
        if getattr(args, name) is not None and not getattr(args, needs):
            args.parser.error(f"--{name.replace('_', '-')} goes with --{needs}, got none")
    for name in ("limit", "rows", "length"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            args.parser.error(f"--{name} must be at least 1, got {getattr(args, name)}")
    if args.pattern is not None and args.text.is_file():
        args.parser.error(f"--pattern is for --text DIR, got the file {args.text}: leave it out")
    for path in (args.text, args.choices, args.include_path):
        if path is not None and not path.exists():
            args.parser.error(f"{path} does not exist: name another file or directory")


def _held_out(args: argparse.Namespace, root: Path) -> "tuple[dict[str, Any], Any, int]":
    """Returns a title, the batches of a run's held-out rows and their number."""
    from dovetail_data import Corpus, batches, pack
    from dovetail_stack import settings
    from dovetail_stack.recipes.fitting import evaluated_batches

    stored = settings.load(root) if (root / settings.FILE).is_file() else None
    if not isinstance(stored, settings.FromText | settings.Chat):
        kind = "a directory" if stored is None else f"a run of {stored.recipe}"
        raise ValueError(
            f"{kind} has no held-out text, got {args.model} alone: pass --text DIR, --choices FILE "
            "or --tasks NAME"
        )
    step = stored.training
    length, size = args.length or step.length, step.global_batch
    rows = pack(Corpus(root / "held_out"), length=length, seed=step.seed)
    stream = batches(rows, global_batch=size, seed=None, epochs=1)
    say("Measuring the run's own held-out rows, as training did. For others: --text DIR.")
    count = min(evaluated_batches(size), math.ceil(len(rows) / size))
    about = {"held_out": str(root / "held_out"), "length": length}
    return about, itertools.islice(stream, count), min(count * size, len(rows))


def _text(
    args: argparse.Namespace, tokenizer: "Pretrained", config: "Config", stack: ExitStack
) -> "tuple[dict[str, Any], Any, int]":
    """Returns a title, the batches of all rows of the text and their number."""
    from dovetail_data import Text, batches, pack, text, within, write
    from dovetail_data.sources import compression
    from dovetail_stack.recipes.text import select

    folder, pattern = args.text, args.pattern or "**/*"
    if args.text.is_file():
        folder, pattern = args.text.parent, glob.escape(args.text.name)
    selection = select(folder, pattern=pattern)
    if selection.counts:
        say(f"{selection} below {folder}")
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    encoder = within(Text(tokenizer), vocab_size=config.vocab_size)
    with Writing() as writing:
        corpus = write(
            text(selection.files),
            scratch / "text",
            encoder=encoder,
            progress=functools.partial(writing, "text"),
        )
    length = args.length or min(LENGTH, config.max_length)
    about: dict[str, Any] = {"files": len(selection.files), "length": length}
    if 0 < corpus.text_bytes <= COMPRESSED_BYTES:
        whole = b""
        for file in selection.files:
            with compression.open_file(str(file)) as stream:
                whole += stream.read()
        bits = compressors(whole)
        about |= {f"{name}_bits_per_byte": bits[name] for name in ("gzip", "xz")}
    rows = pack(corpus, length=length)
    return about, batches(rows, global_batch=args.rows, seed=None, epochs=1), len(rows)


def _measured(
    model: "Decoder", tokenizer: "Pretrained", about: dict[str, Any], batches: Any, count: int
) -> dict[str, Any]:
    from dovetail_stack.recipes.evaluation import score_rows
    from dovetail_stack.text_jobs import bytes_of_ids

    sizes = bytes_of_ids(tokenizer)
    with tqdm(desc="text", total=count, unit="row") as bar:
        score = score_rows(model, batches, sizes, progress=bar.update)
    return {
        "bits_per_byte": score.bits_per_byte,
        "loss": score.loss,
        "perplexity": math.exp(score.loss),
        "rows": score.rows,
        "tokens": round(score.tokens),
        **about,
    }


def _chosen(
    args: argparse.Namespace, model: "Decoder", tokenizer: "Pretrained", questions: Any
) -> dict[str, Any]:
    from dovetail_stack.recipes.fitting import attention
    from dovetail_train import multiple_choice

    length = args.length or model.config.kv_length
    options: dict[str, Any] = {"length": length, "rows": args.rows, "attention": attention}
    total = sum(len(question.choices) for question in questions)
    with tqdm(desc="choices", total=total, unit="row") as bar:
        options["progress"] = bar.update
        answers = multiple_choice(model, tokenizer, questions, **options)
    cut = int((answers.likelihoods.cut > 0).sum())
    if cut:
        say(f"{cut} choices and prompts exceed {length} tokens: their prompts lost the beginning.")
    scores: dict[str, Any] = {}
    for name in ("acc", "acc_norm", "acc_bytes"):
        share = getattr(answers, name)
        scores |= {name: share.value, f"{name}_stderr": _number(share.stderr)}
    return {**scores, "questions": len(questions), "cut": cut, "file": str(args.choices)}


def _tasks(args: argparse.Namespace) -> Any:
    """Returns a `TaskManager` that knows the tasks."""
    try:
        from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "--tasks needs lm-eval, got no module of that name: type "
            "pip install 'dovetail-stack[eval]'"
        ) from error
    names, folder = args.tasks.split(","), args.include_path and str(args.include_path)
    manager = None
    if folder:  # alone at first: the tasks of lm-eval are 14,000 files
        manager = TaskManager(include_path=folder, include_defaults=False)
    if manager is None or not set(names) <= set(manager.all_tasks):
        manager = TaskManager(include_path=folder)
    for name in names:
        if name not in manager.all_tasks:
            near = difflib.get_close_matches(name, manager.all_tasks, n=3)
            raise ValueError(
                f"--tasks must name tasks of lm-eval or of --include-path DIR, got {name!r}: "
                + (f"did you mean {' or '.join(near)}?" if near else "see lm-eval ls tasks")
            )
    return manager


def _evaluated(
    args: argparse.Namespace,
    model: "Decoder",
    tokenizer: "Pretrained",
    directory: Path,
    manager: Any,
) -> dict[str, Any]:
    import lm_eval  # pyright: ignore[reportMissingImports]

    from dovetail_stack.recipes.engine import end_ids, engine
    from dovetail_stack.recipes.evaluation import sampler
    from dovetail_stack.recipes.fitting import attention
    from dovetail_train import LMEval

    length = args.length or model.config.kv_length
    with ExitStack() as stack:
        opened: list[Any] = []

        def sample(prompts: Any, **options: Any) -> Any:
            if not opened:  # only a task that generates needs an engine
                ends = end_ids(directory, model.config.vocab_size)
                sizes = {"eos_ids": ends, "max_length": length, "max_rows": args.rows}
                opened.append(stack.enter_context(engine(model, tokenizer=tokenizer, **sizes)))
            return sampler(opened[0])(prompts, **options)

        bar = stack.enter_context(tqdm(desc="tasks", unit="row"))
        options: dict[str, Any] = {"length": length, "rows": args.rows, "attention": attention}
        options["progress"] = bar.update
        adapter = LMEval(model, tokenizer, sampler=sample, **options)
        asked = {"tasks": args.tasks.split(","), "limit": args.limit, "log_samples": False}
        evaluate: Any = lm_eval.simple_evaluate  # a decorator hides its parameters
        scores = evaluate(model=adapter, task_manager=manager, **asked)
    return {name: _metrics(values) for name, values in scores["results"].items()}


def _metrics(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the numbers of a task. lm-eval names them "acc,none", by metric and filter."""
    numbers = {k: v for k, v in values.items() if isinstance(v, int | float) or "_stderr" in k}
    return {key.removesuffix(",none"): _number(value) for key, value in numbers.items()}


def _number(value: Any) -> float | int | None:
    """Returns a number for JSON; None for one that is not known."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _lines(result: dict[str, Any]) -> list[str]:
    """Returns a line for each number."""
    lines = []
    tables = {k: v for k, v in result.items() if k in ("text", "choices")}
    tables |= result.get("tasks", {})
    for title, table in tables.items():
        lines.append(title)
        for name, value in table.items():
            if "_stderr" in name:
                continue
            metric, _, kind = name.partition(",")
            spread = table.get(f"{metric}_stderr{',' * bool(kind)}{kind}")
            shown = f"{value:.4f}" if isinstance(value, float) else str(value)
            lines.append(f"  {name:<20} {shown}" + (f" ± {spread:.4f}" if spread else ""))
    return lines

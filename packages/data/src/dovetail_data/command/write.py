# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The action `write`: files to a corpus."""

import argparse
import collections
import json
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Any, get_args

from dovetail_data._command import add_json
from dovetail_data.encode import Encoder, Image, Text
from dovetail_data.encode.chat import Chat
from dovetail_data.encode.preference import Preference
from dovetail_data.encode.prompt import Prompt
from dovetail_data.showing import summary as _summary
from dovetail_data.sources import compression
from dovetail_data.sources._remote import Store, located
from dovetail_data.sources.array_record import array_record
from dovetail_data.sources.arrow import arrow
from dovetail_data.sources.bagz import bagz
from dovetail_data.sources.hf_directory import hf_directory
from dovetail_data.sources.jsonl import jsonl
from dovetail_data.sources.parquet import parquet
from dovetail_data.sources.source import Source
from dovetail_data.sources.text import Errors, text
from dovetail_data.sources.tfds import tfds
from dovetail_data.tokenizing.pieces import special_names
from dovetail_data.tokenizing.template import Template
from dovetail_data.tokenizing.tokenizer import Bytes, Pretrained
from dovetail_data.writing.write import Progress, write

_SOURCES: dict[str, Callable[..., Source]] = {
    "text": text,
    "jsonl": jsonl,
    "parquet": parquet,
    "arrow": arrow,
    "array_record": array_record,
    "bagz": bagz,
}
_SPLIT: dict[str, Callable[..., Source]] = {"hf": hf_directory, "tfds": tfds}
_ENDINGS = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".array_record": "array_record",
    ".bagz": "bagz",
}
_TABLES = ("parquet", "arrow", "hf")
_SAVED = ("state.json", "dataset_dict.json")  # files of save_to_disk of `datasets`
_TRAINED = ("assistant", "last", "all")
# The options of the command line that each encoder takes.
_TAKES = {
    "text": ("tokenizer", "field"),
    "chat": ("tokenizer", "field", "template", "train_on", "ignore_keys"),
    "preference": ("tokenizer", "template", "ignore_keys"),
    "prompt": ("tokenizer", "field", "template", "ignore_keys"),
    "image": ("field",),
}


def declare(parser: argparse.ArgumentParser) -> None:
    """Encode files into a corpus, or go on where an interrupted write stopped.

    Compressed files (.gz, .bz2, .xz, .zst) are unpacked while they are read. Directories are
    searched. A path may be a URL, such as s3://bucket/texts. A directory saved by `datasets`, or
    one of Parquet files, is a data set with splits.

    With --hosts, workers of Ray encode the records and write the shards. The files are the same
    bytes as those of one process. All hosts must see the input and DIR at the same paths. A killed
    command goes on when it is called again, with any --hosts.
    """
    add = parser.add_argument
    add("paths", type=located, nargs="+", metavar="PATH", help="file, directory or URL to read")
    add(
        "--out",
        type=located,
        required=True,
        metavar="DIR",
        help="directory of the corpus, or its URL",
    )
    formats = (*_SOURCES, *_SPLIT)
    add("--format", choices=formats, help="format of the files (default: by their names)")
    add("--pattern", metavar="GLOB", help='files to read in directories, such as "**/*.md"')
    add("--split", metavar="NAME", help="split to read of a data set (train)")
    add("--json-columns", nargs="+", metavar="NAME", help="columns of JSON text in tables")
    add("--encoder", choices=_TAKES, default="text", help="kind of the records (text)")
    add("--tokenizer", metavar="PATH", help="tokenizer.json, its directory, or bytes (bytes)")
    add("--template", type=Path, metavar="PATH", help="chat template, or a model's directory")
    add("--field", metavar="NAME", help="field with the text, the messages or the image")
    add("--train-on", choices=_TRAINED, help="messages of a chat to train on (assistant)")
    add("--ignore-keys", nargs="+", metavar="KEY", help="keys of messages that nobody need read")
    add("--workers", type=int, default=1, metavar="N", help="number of processes that encode (1)")
    add("--hosts", type=int, metavar="N", help="number of Ray workers that encode and write shards")
    add("--ray", metavar="ADDRESS", help="Ray cluster of --hosts (default: a local one, started)")
    add(
        "--shard-bytes", type=int, default=1 << 28, metavar="N", help="bytes of ids per file (2^28)"
    )
    add("--max-corrupt", type=int, default=0, metavar="N", help="most records to leave out (0)")
    add(
        "--errors", choices=get_args(Errors), help="what to do with text that is not UTF-8 (strict)"
    )
    add_json(parser)


def run(args: argparse.Namespace, progress: Callable[[Progress], object] | None) -> str:
    """Returns the output of the action."""
    encoder = _encoder(args)
    source, split = _source(args)
    try:
        corpus = write(
            source,
            args.out,
            encoder=encoder,
            shard_bytes=args.shard_bytes,
            workers=args.workers,
            hosts=args.hosts,
            ray=args.ray,
            max_corrupt=args.max_corrupt,
            progress=progress,
        )
    except KeyboardInterrupt as stopped:
        raise KeyboardInterrupt(
            "finished shards stay, and the same command goes on from them"
        ) from stopped
    facts = _summary.facts(corpus) | ({"split": split} if split else {})
    return json.dumps(facts, indent=2) if args.json else _summary.described(facts)


def _source(args: argparse.Namespace) -> tuple[Source, str | None]:
    """Returns the source, and its split if it has splits."""
    kind, pattern = args.format, args.pattern
    if kind is None:
        kind, pattern = ("hf", pattern) if args.split else _guess(args.paths, pattern)
    if kind in _SPLIT:
        if len(args.paths) > 1 or args.pattern:
            raise ValueError(
                "a data set must be one directory, without --pattern: got "
                f"paths={list(map(str, args.paths))}, pattern={args.pattern!r}. Pass --format "
                "parquet or another to read files of several."
            )
        split = args.split or "train"
        return _SPLIT[kind](args.paths[0], split=split, **_of_tables(args, kind)), split
    if args.split:
        raise ValueError(
            f"--split must be of a data set: got --split {args.split} with --format {kind}. "
            "Pass --format hf or tfds, or leave it out."
        )
    options = _of_tables(args, kind) | ({"pattern": pattern} if pattern else {})
    if args.errors:
        if kind != "text":
            raise ValueError(
                f"--errors must be for files of text: got --errors {args.errors} with --format "
                f"{kind}. Leave it out."
            )
        options["errors"] = args.errors
    return _SOURCES[kind](args.paths, **options), None


def _of_tables(args: argparse.Namespace, kind: str) -> dict[str, Any]:
    """Returns the options of tables that were given."""
    if args.json_columns is None:
        return {}
    if kind not in _TABLES:
        raise ValueError(
            f"--json-columns must be of tables, {', '.join(_TABLES)}: got --json-columns "
            f"{' '.join(args.json_columns)} with --format {kind}. Leave it out."
        )
    return {"json_columns": args.json_columns}


def _guess(paths: Sequence[str | Path], pattern: str | None) -> tuple[str, str | None]:
    """Returns format and pattern by the names of the files, which must be of one kind.

    Files of unknown kinds in a directory are passed over, unless a pattern asks for them.
    """
    named: collections.Counter[str] = collections.Counter()
    searched: collections.Counter[str] = collections.Counter()
    for path in paths:
        if isinstance(path, str):  # a URL
            store = Store(path)
            files = list(store.files(pattern or "**/*")) or [store.url]
            (named if pattern else searched).update(_ending(PurePosixPath(name)) for name in files)
        elif any((path / name).is_file() for name in _SAVED):
            named["saved data set"] += 1
        elif path.is_dir():
            files = [file for file in path.glob(pattern or "**/*") if file.is_file()]
            (named if pattern else searched).update(map(_ending, files))
        elif path.exists():
            named[_ending(path)] += 1
        else:
            raise ValueError(f"a path must exist: got {path}. Correct its spelling.")
    known = {ending for ending in (*named, *searched) if ending in _ENDINGS or ending in named}
    if known == {"saved data set"}:
        return "hf", None
    kinds = {_ENDINGS.get(ending) for ending in known}
    if len(known) != 1 or None in kinds:
        listed = [f"{count:,} {name}" for name, count in sorted((named + searched).items())]
        raise ValueError(
            f"files must be of one known kind, {', '.join(_ENDINGS)}: got "
            f"{', '.join(listed) or 'no file'} in {', '.join(map(str, paths))}. Pass --format, and "
            'for directories --pattern, such as --format text --pattern "**/*.md".'
        )
    (ending,) = known
    local = paths[0] if len(paths) == 1 and isinstance(paths[0], Path) else None
    if ending == ".parquet" and local is not None and local.is_dir() and not pattern:
        return "hf", None
    return _ENDINGS[ending], pattern or f"**/*{ending}"


def _ending(path: PurePath) -> str:
    name = path.name.removesuffix(compression.suffix(path.name))
    return Path(name).suffix or f"named {path.name!r}"


def _encoder(args: argparse.Namespace) -> Encoder:
    takes = _TAKES[args.encoder]
    for option in ("tokenizer", "field", "template", "train_on", "ignore_keys"):
        if getattr(args, option) is not None and option not in takes:
            others = [name for name, options in _TAKES.items() if option in options]
            raise ValueError(
                f"--{option.replace('_', '-')} must be for an encoder that takes it: got --encoder "
                f"{args.encoder}. Leave it out, or pass --encoder {' or '.join(others)}."
            )
    field = {} if args.field is None else {"field": args.field}
    if args.encoder == "image":
        return Image(**field)
    tokenizer = tokenizer_of(args.tokenizer or "bytes")
    if args.encoder == "text":
        return Text(tokenizer, **field)
    template = None if args.template is None else _template(args.template, tokenizer)
    ignored: dict[str, Any] = {"ignore_keys": args.ignore_keys or ()}
    if args.encoder == "preference":
        return Preference(tokenizer, template=template, **ignored)
    if args.encoder == "prompt":
        return Prompt(tokenizer, template=template, **field, **ignored)
    if template is None:
        raise ValueError(
            "chats must have a template: got --encoder chat without --template. Pass the "
            "directory of the model that is to be tuned, or its chat_template.jinja."
        )
    train_on = args.train_on or "assistant"
    return Chat(tokenizer, template=template, train_on=train_on, **field, **ignored)


def tokenizer_of(name: str) -> Bytes | Pretrained:
    """Returns the tokenizer that --tokenizer names."""
    return Bytes() if name == "bytes" else Pretrained(name)


def _template(path: Path, tokenizer: Bytes | Pretrained) -> Template:
    """Returns the template.

    bos and eos come from the tokenizer_config.json beside it, else from the tokenizer.
    """
    directory = path if path.is_dir() else path.parent
    if (directory / "tokenizer_config.json").is_file():
        return Template.load(path)
    names = special_names(tokenizer)
    bos = tokenizer.bos_token or ""
    return Template.load(path, bos=bos, eos=names[tokenizer.eos_id])

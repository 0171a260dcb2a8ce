# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Serve a language model to clients of OpenAI's API, or a directory of bundles.

PATH is a run of `dovetail train`, a Hugging Face directory or a Hub id, which is served at
/v1/completions and /v1/chat/completions; or a directory of bundles, PATH/NAME/VERSION, as
`dovetail bundle export` writes them, over the Open Inference Protocol. Models are verified and
compiled before they take requests. SIGTERM or Ctrl-C stops the server after the requests that it
has. Requests choose one of many LoRA adapters by its name, --adapter NAME=DIR.
"""

import argparse
import contextlib
import gc
import logging
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail_serve.command.cli import ACTIONS
from dovetail_stack._command import DONE
from dovetail_stack.commands.arguments import add_accepted, add_template
from dovetail_stack.model_directory import EXPORT, RUN_FILE
from dovetail_stack.parsing import Parser
from dovetail_stack.processes import say

if TYPE_CHECKING:
    from dovetail_infer import Engine
    from dovetail_models import Decoder
    from dovetail_stack.recipes.places import Places

SERVE = ACTIONS["serve"]
OPENAI, BUNDLES = "openai", "bundles"
# Options of both kinds of a server.
_COMMON = ("path", "api", "host", "http", "max_body", "token_file", "grace_s", "allow", "ignore")
_COMMON += ("tls_certificate", "tls_key")
_OF_MODELS = ("name", "max_rows", "max_length", "template", "date", "tools", "reasoning")
_OF_MODELS += ("adapter", "allow_adapters", "max_adapters", "adapter_rank")
_OF_MODELS += ("key_requests", "key_tokens", "access_log_file", "lenient")


def add(parser: Parser) -> None:
    """Declares the library's own arguments, and those of a language model."""
    SERVE.declare(parser)
    parser.words.update(SERVE.WORDS)
    parser.words.update(requests="--key-requests", tokens_per_minute="--key-tokens")
    parser.add_argument(
        "--api", choices=(OPENAI, BUNDLES), help="what PATH is served as (what it holds decides)"
    )
    group = parser.add_argument_group("a language model")
    group.add_argument("--name", help="name of the model in requests (the last part of PATH)")
    group.add_argument("--max-rows", type=int, default=64, help="most requests at a time (64)")
    group.add_argument(
        "--max-length", type=int, help="most tokens of a request (the model's, at most 4096)"
    )
    add = group.add_argument
    add("--key-requests", type=int, metavar="N", help="requests of a key at a time (no limit)")
    add("--key-tokens", type=int, metavar="N", help="tokens of a key in a minute (no limit)")
    add("--lenient", action="store_true", help="ignore unknown fields of requests, with a warning")
    add("--access-log-file", metavar="FILE", help="a line of JSON for each request; -: stderr (no)")
    add_template(parser)
    parser.add_argument(
        "--tools", metavar="FORMAT|none", help="format of calls of tools (the template's own)"
    )
    parser.add_argument(
        "--reasoning", metavar="FORMAT|none", help="format of reasoning (the template's own)"
    )
    _add_adapters(parser)
    add_accepted(parser)


def _add_adapters(parser: Parser) -> None:
    """Declares the LoRA adapters of a language model."""
    option = parser.add_argument_group("adapters of a language model").add_argument
    named = {"type": _named, "action": "append", "default": [], "metavar": "NAME=DIR"}
    text = "a PEFT directory, for requests whose model is NAME; may be repeated"
    option("--adapter", **named, help=text)
    text = "load and unload adapters of FOLDER over HTTP (no)"
    option("--allow-adapters", type=Path, metavar="FOLDER", help=text)
    text = "most adapters at a time (those of --adapter, and 4 with --allow-adapters)"
    option("--max-adapters", type=int, help=text)
    text = "largest rank (the largest of --adapter, or else 16)"
    option("--adapter-rank", type=int, help=text)


def _named(text: str) -> tuple[str, Path]:
    name, between, path = text.partition("=")
    if not (name and between and path):
        raise ValueError
    return name, Path(path)


def run(args: argparse.Namespace) -> int:
    """Serves until a signal; returns the exit code."""
    path = Path(args.path)
    api = args.api or (OPENAI if is_model(path) else BUNDLES)
    shared = {*_COMMON, *(_OF_MODELS if api == OPENAI else ())}
    check(args, shared, api)
    if api == BUNDLES:
        code, _ = SERVE.run(args)
        return code
    return _serve_model(args, path)


def is_model(path: Path) -> bool:
    """Returns whether a path is a run, a Hugging Face directory or a Hub id."""
    files = (RUN_FILE, "config.json", f"{EXPORT}/config.json")
    if path.exists():
        return any((path / file).is_file() for file in files)
    return not path.is_absolute() and len(path.parts) == 2


def check(args: argparse.Namespace, known: set[str], api: str) -> None:
    """Refuses options of the other kind of a server.

    Args:
        args: The command line.
        known: Options of this kind.
        api: This kind.
    """
    if api == BUNDLES:
        others = [n for n in _OF_MODELS if getattr(args, n) != args.parser.get_default(n)]
    else:
        own = {action.dest for action in args.parser._actions} - known - {"debug", "help"}
        others = [n for n in sorted(own) if getattr(args, n) != args.parser.get_default(n)]
    if others:
        kind = "a language model" if api == OPENAI else "bundles"
        raise ValueError(
            f"--{others[0].replace('_', '-')} must be left out for {kind}, got it for "
            f"PATH={args.path!r}; leave it out, or type --api for the other kind"
        )


def _serve_model(args: argparse.Namespace, path: Path) -> int:
    import jax

    from dovetail_infer.server import AccessLog, KeyLimits
    from dovetail_infer.server import run as serve
    from dovetail_serve.command.serve import raise_descriptor_limit
    from dovetail_serve.serving.options import check_tls
    from dovetail_stack.model_directory import locate
    from dovetail_stack.recipes.engine import load
    from dovetail_stack.recipes.record_options import Dialogue
    from dovetail_stack.recipes.serving import application, connections, dialect_of

    directory = locate(path)
    name = args.name or path.resolve().name
    dialogue = Dialogue(template=args.template, date=args.date)
    dialect = dialect_of(directory, dialogue, tools=args.tools, reasoning=args.reasoning)
    keys = [] if args.token_file is None else keys_of(Path(args.token_file))
    check_address(args.host, args.http)  # before a minute of loading and compiling
    tls = SERVE.tls_of(args)
    if tls is not None:
        check_tls(*tls)
    room = places_of(args, directory, name)
    limits = KeyLimits(requests=args.key_requests, tokens_per_minute=args.key_tokens)
    log = None if args.access_log_file is None else AccessLog(args.access_log_file)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # If programs are kept, then all: a second start compiles nothing.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    logging.getLogger("dovetail_infer").setLevel(logging.INFO)
    raise_descriptor_limit()
    base = load(directory)
    with log or contextlib.nullcontext(), _engine(args, directory, room, base) as opened:
        served = application(
            opened,
            directory,
            name=name,
            dialogue=dialogue,
            dialect=dialect,
            **({} if room is None else _filled(args, room, opened, base)),
            api_keys=keys,
            max_body=args.max_body,
            limits=limits,
            lenient=args.lenient,
            access_log=log,
        )
        say(f"{path} is a language model, {name!r}, for clients of OpenAI's API: compiling it")
        say(f"calls of tools: {dialect.tools or 'none'}; reasoning: {dialect.reasoning or 'none'}")
        if room is not None:
            say(f"it has {room}; taken: {len(args.adapter)}")
        programs = opened.warmup(wait=False)
        say(f"{len(programs)} programs are compiled, enough for all requests; the others follow")
        gc.collect()
        gc.freeze()  # a collection would look at the model's objects while JSON is parsed
        place: dict[str, Any] = {"host": args.host, "port": args.http, "tls": tls}
        serve(served, **place, grace_s=int(args.grace_s), protocol=connections(served))
    return DONE


def _engine(
    args: argparse.Namespace, directory: Path, room: "Places | None", base: "Decoder"
) -> "Engine":
    """Returns the engine of a base model, with places for adapters."""
    from dovetail_data import Pretrained
    from dovetail_stack.recipes.engine import end_ids, engine

    return engine(
        base if room is None else room.opened(base),
        tokenizer=Pretrained(directory),
        eos_ids=end_ids(directory, base.config.vocab_size),
        max_rows=args.max_rows,
        max_length=args.max_length,
        adapters=0 if room is None else room.count,
    )


def places_of(args: argparse.Namespace, directory: Path, name: str) -> "Places | None":
    """Returns the places for the adapters of the options, which are checked. None: there are none.

    Args:
        args: The command line.
        directory: That of the base model, whose weights are not read.
        name: Name of the base model.
    """
    from dovetail_infer.server.models import check_name
    from dovetail_stack.recipes.engine import config_of
    from dovetail_stack.recipes.places import places

    adapters: dict[str, Path] = {}
    for other, path in args.adapter:
        check_name(other, field="adapter", base=name, taken=adapters)
        adapters[other] = path
    folder = args.allow_adapters
    sizes = {"max_adapters": args.max_adapters, "adapter_rank": args.adapter_rank}
    if folder is not None and not folder.is_dir():
        raise ValueError(f"allow_adapters must be a folder, got allow_adapters={folder}: make it")
    if not adapters and folder is None:
        if given := [f"{name}={value}" for name, value in sizes.items() if value is not None]:
            raise ValueError(
                f"places must be for --adapter or --allow-adapters, got {given[0]} alone: leave it "
                "out"
            )
        return None
    return places(config_of(directory), adapters, open_to_others=folder is not None, **sizes)


def _filled(
    args: argparse.Namespace, room: "Places", engine: "Engine", base: "Decoder"
) -> dict[str, Any]:
    """Loads the adapters of the options. Returns the options of the application."""
    from dovetail_infer.server import Adapter
    from dovetail_stack.recipes.serving import beneath

    def load(path: str) -> int:
        return room.load(engine, base, beneath(args.allow_adapters, path))

    for place in range(room.count):
        engine.unload_adapter(place)
    adapters = {
        name: Adapter(room.load(engine, base, path), str(path)) for name, path in args.adapter
    }
    return {"adapters": adapters, "load_adapter": load if args.allow_adapters else None}


def check_address(host: str, port: int) -> None:
    """Raises ValueError unless the address can be listened on now.

    Args:
        host: The address.
        port: The port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if not 0 <= port < 2**16:
            raise OSError("ports are 0 to 65535")
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise ValueError(
            f"host and http must be an address and a free port of this machine, got host={host} "
            f"and http={port} ({error}); type --http 0 for a free port"
        ) from error


def keys_of(file: Path) -> list[str]:
    """Returns the keys of a file, one in a line."""
    keys = file.read_text(encoding="utf-8").split()
    if not keys:
        raise ValueError(
            f"a file of keys must have one in a line, got an empty {str(file)!r}: write one from "
            "python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return keys

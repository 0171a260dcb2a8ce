# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The action `serve`: the bundles of a repository over HTTP and gRPC."""

import argparse
import importlib
import logging
import os
import sys
import threading
import time
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import jax

from dovetail_serve._command import DONE
from dovetail_serve.command.log_lines import LineFormatter
from dovetail_serve.loading.model import Verify
from dovetail_serve.serving.options import Batching
from dovetail_serve.serving.scan import directories, has_manifest
from dovetail_serve.serving.server import Ready, Server
from dovetail_serve.types import HostCall

WORDS = {
    "repository": "PATH",
    "labels": "--label",
    "functions": "--function",
    "tls": "--tls-certificate and --tls-key",
    "token": "--token-file",
}
_DEFAULT = Batching()
# Each connection needs a descriptor, and the usual soft limit of 1024 is that of connections alone:
# beyond it they end without an answer, and files of models cannot be read.
_DESCRIPTORS = 65536
# Time that an idle thread has to end after its executor was shut down.
_IDLE_THREAD_S = 0.2


def declare(parser: argparse.ArgumentParser) -> None:
    """Serve the bundles of a repository, PATH/NAME/VERSION, over the Open Inference Protocol.

    Models are verified before they take requests. SIGTERM or Ctrl-C stops the server after the
    requests that it has.
    """
    add = parser.add_argument
    add("path", metavar="PATH", help="repository: a bundle is PATH/NAME/VERSION")
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen on (127.0.0.1)")
    add("--http", type=int, default=8000, metavar="PORT", help="port of HTTP; 0: a free one (8000)")
    add("--grpc", type=int, metavar="PORT", help="port of gRPC (no gRPC)")
    _declare_models(parser)
    _declare_batching(parser)
    _declare_access(parser)


def run(args: argparse.Namespace) -> tuple[int, str]:
    """Serves until a signal. Returns the exit code and no output."""
    check_repository(Path(args.path))
    tls = tls_of(args)
    server = Server(
        args.path,
        versions=versions_of(args.versions),
        labels=labels_of(args.label),
        poll_s=args.poll_s,
        batching=Batching(
            max_batch=args.max_batch,
            max_delay_ms=args.max_delay_ms,
            padding=args.padding,
            queue=args.queue,
            timeout_ms=args.timeout_ms,
            split=args.split,
            priorities=args.priorities,
        ),
        verify=args.verify,
        functions=functions_of(args.function),
        finite=args.finite,
        ready=args.ready,
        map_weights=args.map_weights,
    )
    token = None if args.token_file is None else read_token(Path(args.token_file))
    # Here, so that the other actions work without the extra "server".
    from dovetail_serve.http.run import run as serve

    logging.getLogger("dovetail_serve").setLevel(logging.INFO)
    for handler in logging.getLogger().handlers:
        handler.setFormatter(LineFormatter(as_json=args.access_log == "json"))
    raise_descriptor_limit()
    # A server waits for each batch. On a CPU, handing it to a thread of XLA's and back takes a
    # third of the CPU time of a small one, and large ones may be slowed too (openxla/xla #18608).
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    serve(
        server,
        host=args.host,
        http=args.http,
        grpc=args.grpc,
        max_body=args.max_body,
        token=token,
        tls=tls,
        control=args.control,
        access_log=args.access_log,
        grace_s=args.grace_s,
    )
    _end_if_busy()
    return DONE, ""


def tls_of(args: argparse.Namespace) -> tuple[str, str] | None:
    """Returns the files of --tls-certificate and --tls-key. ValueError: one is missing."""
    if (args.tls_certificate is None) != (args.tls_key is None):
        raise ValueError(
            "TLS must have a certificate and its key, got one of them; type --tls-certificate FILE "
            "--tls-key FILE"
        )
    return None if args.tls_key is None else (args.tls_certificate, args.tls_key)


def raise_descriptor_limit() -> None:
    """Lets the process have as many descriptors as it may, up to `_DESCRIPTORS`."""
    if sys.platform != "win32":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _end_if_busy() -> None:
    """Ends the process if a thread of the stopped server is still at work.

    At exit the interpreter joins the threads of executors, and neither a host function nor a
    compilation can be interrupted. Nobody waits for their results, and bundles are only read, so
    nothing is lost.
    """
    deadline = time.monotonic() + _IDLE_THREAD_S
    for thread in threading.enumerate():
        if thread.name.startswith("dovetail-serve"):
            thread.join(max(deadline - time.monotonic(), 0.0))
            if thread.is_alive():
                logging.getLogger("dovetail_serve").warning("left a busy thread=%s", thread.name)
                logging.shutdown()
                sys.stdout.flush()
                os._exit(DONE)


def check_repository(path: Path) -> None:
    """Raises an error with the command to type unless `path` may be a repository."""
    if not path.is_dir():
        raise FileNotFoundError(
            f"a repository is a directory with a bundle at NAME/VERSION, got PATH={str(path)!r}, "
            f"which {'is a file' if path.exists() else 'does not exist'}; write a bundle to it by "
            "dovetail bundle export RUN --out PATH/NAME/1, or by Bundle.save"
        )
    if has_manifest(path):
        raise ValueError(
            f"a repository has a bundle at NAME/VERSION, got the bundle PATH={str(path)!r} itself; "
            f"type {_for_bundle(path.resolve())}"
        )
    # What cannot be looked at is for the server to report: `lost+found` keeps nobody from serving.
    children = [path / name for name in directories(path)[0]]
    if any(map(has_manifest, children)):
        raise ValueError(
            f"a repository has a bundle at NAME/VERSION, got the model PATH={str(path)!r} of one; "
            f"type serve {path.resolve().parent}"
        )
    bundled = any(has_manifest(version) for child in children for version in child.glob("*"))
    if (path / "config.json").is_file() and not bundled:
        raise ValueError(
            f"a repository has a bundle at NAME/VERSION, got the Hugging Face directory "
            f"PATH={str(path)!r}; serve a language model with dovetail serve, export an encoder "
            "with dovetail bundle export, or a function of the model with "
            "dovetail_serve.export, to PATH/NAME/1"
        )


def _for_bundle(path: Path) -> str:
    """Returns the command to serve one bundle."""
    name, version = path.parent.name, path.name
    if version.isdecimal() and name:
        return f"serve {path.parent.parent} --versions {name}={int(version)}"
    return f"mkdir -p repo/{name or 'model'}, mv {path} repo/{name or 'model'}/1, and serve repo"


def versions_of(given: Sequence[str]) -> str | dict[str, tuple[int, ...]]:
    """Parses --versions: "latest:2", "all", or NAME=V,V for each model to load."""
    if not given:
        return "latest:1"
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    by_model: dict[str, tuple[int, ...]] = {}
    for name, numbers in _named(given, option="--versions", example="mlp=3,5"):
        if name in by_model or not all(number.isdecimal() for number in numbers.split(",")):
            raise ValueError(
                "--versions must name each model once, with versions as numbers, got "
                f"{name}={numbers}; type --versions {name}=3,5"
            )
        by_model[name] = tuple(map(int, numbers.split(",")))
    return by_model


def labels_of(given: Sequence[str]) -> dict[str, dict[str, int]]:
    """Parses --label NAME:LABEL=VERSION."""
    labels: dict[str, dict[str, int]] = {}
    for target, number in _named(given, option="--label", example="mlp:stable=3"):
        name, _, label = target.rpartition(":")
        if not name or not label or not number.isdecimal() or label in labels.get(name, {}):
            raise ValueError(
                "--label must give one version to a label of a model, got "
                f"{target}={number}; type --label mlp:stable=3"
            )
        labels.setdefault(name, {})[label] = int(number)
    return labels


def functions_of(given: Sequence[str]) -> dict[str, HostCall]:
    """Imports the functions of --function NAME=MODULE:FUNCTION.

    Modules may lie in the current directory, where `python -m` looks and an installed command does
    not.
    """
    if given and not sys.flags.safe_path and not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    functions: dict[str, HostCall] = {}
    example = "tokenize=package.module:tokenize"
    for name, place in _named(given, option="--function", example=example):
        module, _, attribute = place.partition(":")
        function: Any = None
        if module and attribute:
            function = getattr(_imported(module, f"{name}={place}"), attribute, None)
        if not callable(function) or name in functions:
            raise ValueError(
                f"--function must give one function of a module to each name, got {name}={place}; "
                f"type --function {example}"
            )
        functions[name] = cast(HostCall, function)
    return functions


def _imported(module: str, given: str) -> types.ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # of an import within the module
        raise ValueError(
            f"--function must name a module that Python can import, got {given}: {error}; start "
            f"the server in the directory with {error.name}, or set PYTHONPATH to it"
        ) from error


def read_token(file: Path) -> str:
    """Returns the token in the one line of a file. Raises ValueError if it has none, or another."""
    lines = file.read_text().splitlines()
    if len(lines) != 1 or not lines[0].strip():
        came = f"{len(lines)} lines" if len(lines) > 1 else "nothing"
        raise ValueError(
            f"--token-file must have the token in one line, got {came} in {str(file)!r}; type "
            f"openssl rand -hex 32 > {file}"
        )
    token = lines[0].strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ValueError(
            "--token-file must have a token of printable ASCII without spaces, got other "
            f"characters in {str(file)!r}; type openssl rand -hex 32 > {file}"
        )
    return token


def _named(given: Sequence[str], *, option: str, example: str) -> Iterator[tuple[str, str]]:
    for text in given:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ValueError(f"{option} must be NAME=VALUE, got {text!r}; type {option} {example}")
        yield name, value


def _declare_models(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("models").add_argument
    add(
        "--versions",
        action="append",
        default=[],
        metavar="V",
        help="latest:2, all, or NAME=3,5 for each model to load (latest:1)",
    )
    add(
        "--label",
        action="append",
        default=[],
        metavar="NAME:LABEL=V",
        help="name for a version, as in mlp:stable=3",
    )
    add(
        "--poll",
        dest="poll_s",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="look for new versions so often (never)",
    )
    add(
        "--verify",
        choices=get_args(Verify),
        default="full",
        help="bytes and example, bytes, or nothing (full)",
    )
    add(
        "--function",
        action="append",
        default=[],
        metavar="NAME=MODULE:F",
        help="host function that bundles name",
    )
    add("--finite", action="store_true", help="refuse results with NaN or infinities")
    add(
        "--ready",
        choices=get_args(Ready),
        default="all",
        help="the server is ready when all models of the start are, or any (all)",
    )
    add(
        "--map-weights",
        action="store_true",
        help="map files of weights; whoever cuts one short ends the server (read into memory)",
    )


def _declare_batching(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("batching").add_argument
    add("--max-batch", type=int, metavar="ROWS", help="rows of a batch (the largest batch size)")
    add(
        "--max-delay-ms",
        type=float,
        default=_DEFAULT.max_delay_ms,
        metavar="MS",
        help="time that an idle model waits for more rows (0)",
    )
    add(
        "--padding",
        default=_DEFAULT.padding,
        metavar="RULE",
        help="min_cost: batch sizes by measured cost; next: the next one (min_cost)",
    )
    add(
        "--queue",
        type=int,
        default=_DEFAULT.queue,
        metavar="N",
        help=f"requests that wait; more are refused ({_DEFAULT.queue})",
    )
    add("--timeout-ms", type=float, metavar="MS", help="deadline of a request (none)")
    add(
        "--no-split",
        dest="split",
        action="store_false",
        help="refuse requests of more rows than a batch",
    )
    add(
        "--priorities",
        type=int,
        default=_DEFAULT.priorities,
        metavar="N",
        help=f"levels of priority ({_DEFAULT.priorities})",
    )


def _declare_access(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("access").add_argument
    add("--token-file", metavar="FILE", help="file with the bearer token of requests (none)")
    add("--tls-certificate", metavar="FILE", help="certificate chain, PEM (no TLS)")
    add("--tls-key", metavar="FILE", help="its private key, PEM")
    add("--control", action="store_true", help="let clients load and unload models")
    add(
        "--max-body",
        type=int,
        default=64 << 20,
        metavar="BYTES",
        help="largest body of a request (64 MiB)",
    )
    add(
        "--access-log", choices=("text", "json"), help="log each response; json: the whole log (no)"
    )
    add(
        "--grace",
        dest="grace_s",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="time that open requests have after SIGTERM (30)",
    )

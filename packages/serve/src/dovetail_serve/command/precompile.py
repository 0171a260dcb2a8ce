# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The action `precompile`: executables of a bundle for this machine, in the user's cache."""

import argparse
import dataclasses
import json
import sys

from dovetail_serve._command import DONE, add_json, printable
from dovetail_serve.loading.precompile import precompile

WORDS = {"path": "PATH"}


def declare(parser: argparse.ArgumentParser) -> None:
    """Compile a bundle's programs for this machine and keep them in the user's cache.

    Models that this user loads on this machine, with these versions of JAX and this XLA_FLAGS,
    then compile nothing. The cache is $XDG_CACHE_HOME/dovetail/serve, or ~/.cache/dovetail/serve.
    """
    parser.add_argument("path", metavar="PATH", help="bundle, such as repo/mlp/1")
    add_json(parser)


def run(args: argparse.Namespace) -> tuple[int, str]:
    """Returns the exit code and a table of the programs."""
    sys.stderr.write(f"compiling {printable(args.path)}, then loading it in another process\n")
    programs = precompile(args.path)
    place = programs[0].file.parent
    if args.json:
        rows = [dataclasses.asdict(p) | {"file": p.file.name} for p in programs]
        document = {"path": args.path, "sidecar": str(place), "programs": rows}
        return DONE, json.dumps(document, indent=2)
    lines = [f"{'rows':>6} {'bytes':>13} {'compiled in':>12} {'loaded in':>12}"]
    for program in programs:
        rows = "-" if program.rows is None else program.rows
        lines.append(
            f"{rows:>6} {program.bytes:>13,} {program.compile_s:>10.2f} s {program.load_s:>10.3f} s"
        )
    return DONE, "\n".join([*lines, f"kept in {printable(str(place))}"])

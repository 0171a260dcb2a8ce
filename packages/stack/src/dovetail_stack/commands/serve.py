# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Serve a directory of bundles over the Open Inference Protocol, by HTTP and gRPC.

A bundle is PATH/NAME/VERSION, as `dovetail bundle export` writes it. Models are verified before
they take requests. SIGTERM or Ctrl-C stops the server after the requests that it has. This is the
action `serve` of `python -m dovetail_serve`.
"""

import argparse

from dovetail_serve.command.cli import ACTIONS
from dovetail_stack.parsing import Parser

SERVE = ACTIONS["serve"]


def add(parser: Parser) -> None:
    """Declares the library's own arguments."""
    SERVE.declare(parser)
    parser.words.update(SERVE.WORDS)


def run(args: argparse.Namespace) -> int:
    """Serves until a signal; returns the exit code."""
    code, _ = SERVE.run(args)
    return code

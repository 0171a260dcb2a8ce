# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments that several commands declare."""

import argparse
from pathlib import Path

from dovetail_stack.parsing import Parser
from dovetail_stack.recipes.options import check_local
from dovetail_stack.recipes.record_options import DATE_HELP, TEMPLATE_HELP, template_name


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


def add_template(parser: Parser) -> None:
    """Declares the chat template of messages."""
    parser.add_argument(
        "--template", type=template_name, metavar="FILE|chatml", help=f"{TEMPLATE_HELP} (its own)"
    )
    parser.add_argument("--date", metavar="YYYY-MM-DD", help=f"{DATE_HELP} (none)")
    parser.words["now"] = "--date"


def add_new_directory(parser: argparse.ArgumentParser) -> None:
    """Declares the output directory."""
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="a directory that does not exist"
    )


def check_new(out: Path) -> None:
    """Raises ValueError if the output directory exists, or is no path of this machine."""
    check_local("out", out)
    if out.exists():
        raise ValueError(f"out must be a new directory, got out={out}, which exists: name another")

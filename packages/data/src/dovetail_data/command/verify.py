# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The action `verify`: every byte of a corpus against its digests."""

import argparse
import json

from dovetail_data._command import add_json
from dovetail_data.corpus.verifying import verify
from dovetail_data.sources._remote import located


def declare(parser: argparse.ArgumentParser) -> None:
    """Read every byte of a corpus and compare it with the digests in its index.

    Every damaged file is named. A corpus of an older version has no digests of its index and of
    its small files. --add writes them.
    """
    parser.add_argument(
        "corpus", type=located, metavar="DIR", help="directory or URL of the corpus"
    )
    parser.add_argument(
        "--add", action="store_true", help="write the digests that an older corpus lacks"
    )
    add_json(parser)


def run(args: argparse.Namespace, progress: object) -> str:
    """Returns the output of the action."""
    report = verify(args.corpus, add=args.add)
    if args.json:
        counts = {"files": report.files, "bytes": report.bytes}
        return json.dumps({"corpus": str(args.corpus), **counts})
    return str(report)

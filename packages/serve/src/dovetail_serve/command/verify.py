# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The action `verify`: every byte of a bundle, and its example on this device."""

import argparse
import dataclasses
import json
import sys
from typing import Any

from dovetail_serve._command import DONE, add_json, exit_code_of, printable
from dovetail_serve.bundle.folder import Report, open_bundle, verify_folder
from dovetail_serve.bundle.golden import SelfTest
from dovetail_serve.errors import BundleError
from dovetail_serve.loading.without_functions import load_program

WORDS = {"path": "PATH"}


def declare(parser: argparse.ArgumentParser) -> None:
    """Compare every byte of bundles with its digest, and the results of their examples.

    Every program of a bundle runs its example on this device, without host functions. The results
    are compared with the stored ones within a tolerance. All bundles are verified though one is
    damaged.
    """
    parser.add_argument("paths", nargs="+", metavar="PATH", help="bundle, such as repo/mlp/1")
    parser.add_argument(
        "--files", action="store_true", help="compare bytes alone, and start no device"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> tuple[int, str]:
    """Returns the exit code and the reports of all bundles; errors go to standard error.

    The code is 3 if a bundle is damaged or refused, else 2 or 1 if one cannot be read.
    """
    reports, code = [], DONE
    for path in args.paths:
        try:
            report = _verified(path, files=args.files)
        except (BundleError, OSError) as error:
            if "debug" in args:
                raise
            code = max(code, exit_code_of(error))
            report = {"path": path, "error": args.parser.as_typed(str(error))}
            sys.stderr.write(f"{args.parser.prefix}error: {report['error']}\n")
        reports.append(report)
    if args.json:
        return code, json.dumps({"bundles": reports}, indent=2)
    return code, "\n".join(_text(report) for report in reports if "error" not in report)


def _verified(path: str, *, files: bool) -> dict[str, Any]:
    """Returns the report of the comparison. Raises BundleError, IntegrityError or OSError."""
    report: Report = verify_folder(open_bundle(path))
    result = {"path": path, **dataclasses.asdict(report)}
    if not files:
        test: SelfTest = load_program(path).self_test()
        test.check()
        result["example"] = dataclasses.asdict(test)
    return result


def _text(report: dict[str, Any]) -> str:
    lines = [
        f"{printable(report['path'])}: {report['files']} files with {report['arrays']} arrays, "
        f"{report['bytes']:,} bytes, are as they were written",
        f"  {report['digest']}",
    ]
    if "example" in report:
        example = report["example"]
        lines.append(f"  example on {example['platform']}, stored on {example['stored_platform']}")
        for name, compared in example["outputs"].items():
            lines.append(
                f"    {name}: difference {compared['difference']:.1e}, "
                f"tolerance {compared['tolerance']:.1e}"
            )
    return "\n".join(lines)

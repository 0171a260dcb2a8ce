# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Compare what is installed with what was tested, list devices, say how to mend it."""

import argparse
import dataclasses
import json

from dovetail_stack._command import DONE, FAILED, add_json
from dovetail_stack.doctor import diagnose, remedies


def add(parser: argparse.ArgumentParser) -> None:
    """Declares --json."""
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Prints all findings. Returns 1 if any of them asks for a command."""
    findings = diagnose()
    commands = remedies(findings)
    if args.json:
        content = {"findings": [dataclasses.asdict(f) for f in findings], "commands": commands}
        print(json.dumps(content, indent=2))
        return FAILED if commands else DONE
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        mark = "!!" if finding.wrong else "ok"
        print(f"{mark}  {finding.subject:<{width}}  {finding.state}")
    if commands:
        print("\nTo mend it, type:")
        for command in commands:
            print(f"  {command}")
    return FAILED if commands else DONE

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Compare what is installed with what was tested, list devices, say how to mend it."""

import argparse

from dovetail_stack.doctor import diagnose, remedies


def add(parser: argparse.ArgumentParser) -> None:
    """The command takes no arguments."""


def run(args: argparse.Namespace) -> int:
    """Prints every finding; returns 1 if one of them has something to mend."""
    findings = diagnose()
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        mark = "!!" if finding.wrong else "ok"
        print(f"{mark}  {finding.subject:<{width}}  {finding.state}")
    commands = remedies(findings)
    if commands:
        print("\nTo mend it, type:")
        for command in commands:
            print(f"  {command}")
    return 1 if commands else 0

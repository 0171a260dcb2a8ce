# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Compare what is installed with what was tested, list devices, say what to type to mend it."""

import argparse

from dovetail.doctor import diagnose


def add(parser: argparse.ArgumentParser) -> None:
    """The command takes no arguments."""


def run(args: argparse.Namespace) -> int:
    """Prints every finding; returns 1 if one of them has something to mend."""
    findings = diagnose()
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        mark = "!!" if finding.remedy else "ok"
        print(f"{mark}  {finding.subject:<{width}}  {finding.state}")
    remedies = [finding.remedy for finding in findings if finding.remedy]
    if remedies:
        print("\nTo mend it, type:")
        for remedy in remedies:
            print(f"  {remedy}")
    return 1 if remedies else 0

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The option `--only NAME`, which takes the cases of one example or notebook."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option; it may be given several times."""
    parser.addoption(
        "--only", action="append", metavar="NAME", help="an example or notebook"
    )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Take out the cases of other names; a test without cases stays."""
    names = config.getoption("only")
    if not names:
        return
    kept = [
        i
        for i in items
        if not hasattr(i, "callspec") or set(i.callspec.id.split("-")) & {*names}
    ]
    known = {
        part
        for i in items
        if hasattr(i, "callspec")
        for part in i.callspec.id.split("-")
    }
    if unknown := set(names) - known:
        raise pytest.UsageError(
            f"--only must name an example or notebook; got {unknown.pop()}"
        )
    config.hook.pytest_deselected(items=[i for i in items if i not in kept])
    items[:] = kept

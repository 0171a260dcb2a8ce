# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One suite per process: what a suite is strict about is global to its process."""

import signal
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent


def pytest_configure(config: pytest.Config) -> None:
    """Set what every suite relies on, and refuse to mix suites."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As a shell starts its background jobs; tests of interrupts need Python's own.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    refuse_to_mix_suites(config)


def refuse_to_mix_suites(config: pytest.Config) -> None:
    """UsageError, before the strictness of two suites contradicts itself in odd errors."""
    paths = [Path(str(argument).split("::")[0]) for argument in config.args]
    inside = [(config.invocation_params.dir / path).resolve() for path in paths]
    folders = {path.relative_to(ROOT).parts[:2] for path in inside if path.is_relative_to(ROOT)}
    suites = {parts[:1] if parts[:1] != ("packages",) else parts for parts in folders}
    if len(suites) > 1 or suites & {(), ("packages",)}:
        raise pytest.UsageError(
            f"one pytest process must run one suite, got {' '.join(map(str, paths))}; name one, as "
            "in 'pytest packages/data', or run them all with scripts/test"
        )

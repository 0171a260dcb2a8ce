# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests: types checked at run time, and ranks that do not promote."""

import jaxtyping

# Before the first import of the package, so that every annotation of it is checked.
jaxtyping.install_import_hook("dovetail_infer", "beartype.beartype")

import sys  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402

import forced_devices  # noqa: E402
import warm_start  # noqa: E402

sys.path.append(str(Path(__file__).parent))  # engines.py, for several test files


@pytest.fixture(autouse=True)
def _strict_ranks() -> Iterator[None]:
    with jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def unchecked() -> Iterator[None]:
    """Without the types that this suite checks, as in a user's program."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def on_eight_devices() -> Callable[..., None]:
    """Runs a program of tests/programs, which prints "ok", where the host has eight devices.

    The programs compute on one device first, and then call `forced_devices.stop_caching`.
    """

    def run(program: str, *arguments: str) -> None:
        path = Path(__file__).parent / "programs" / program
        done = warm_start.run(
            ["-W", "error", path, *arguments], env=forced_devices.environment(8, cached=True)
        )
        assert done.stdout == "ok\n", done.stderr[-3000:]

    return run

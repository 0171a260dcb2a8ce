# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests share: types checked at run time, and ranks that do not promote.

Dtypes do: Optax's own transformations, which ours wrap, mix them.
"""

import jaxtyping

# Before the first import of the package, so that every annotation of it is checked.
jaxtyping.install_import_hook("dovetail_optim", "beartype.beartype")

from collections.abc import Callable, Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402

import forced_devices  # noqa: E402
import warm_start  # noqa: E402


@pytest.fixture(autouse=True)
def _strict_ranks() -> Iterator[None]:
    with jax.numpy_rank_promotion("raise"):
        yield


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

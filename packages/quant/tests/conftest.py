# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests share: types checked at run time, and ranks that do not promote.

Dtypes may: Optax's own transformations, with which tests train, mix them.
"""

import types

import jaxtyping

# Before the first import of the package, so that every annotation of it is checked.
jaxtyping.install_import_hook("dovetail_quant", "beartype.beartype")

from collections.abc import Iterator  # noqa: E402

import jax  # noqa: E402
import pytest  # noqa: E402


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests of this package are of this package, whatever products the environment offers."""
    from dovetail_quant.matmul import installed

    _forget(installed)
    monkeypatch.setattr(installed, "entry_points", lambda group: ())
    yield
    _forget(installed)


def _forget(installed: types.ModuleType) -> None:
    installed.load.cache_clear()
    installed._entries.cache_clear()


@pytest.fixture(autouse=True)
def _strict_ranks() -> Iterator[None]:
    with jax.numpy_rank_promotion("raise"):
        yield

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the tests share: types checked at run time, strict promotion of dtypes and ranks."""

import importlib.util

import jaxtyping

# Before the first import of the package, so that every annotation of it is checked.
if importlib.util.find_spec("beartype"):  # the session `declared` has no more than users have
    jaxtyping.install_import_hook("dovetail_kernels", "beartype.beartype")

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def traced_anew() -> Iterator[None]:
    """For a test that replaces a part of an operation: no program of another test serves it.

    Operations are traced once for equal shapes, and a trace keeps the functions that it found.
    """
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def _strict_promotion() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield

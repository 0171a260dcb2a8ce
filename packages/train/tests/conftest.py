# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Shapes and types are checked at run time here, and here alone."""

import json
import warnings
from pathlib import Path

import jax
import jaxtyping
import pytest
from beartype.roar import BeartypeDecorHintPep585DeprecationWarning
from jaxtyping import install_import_hook

import forced_devices
import warm_start

with warnings.catch_warnings(), install_import_hook("dovetail_train", "beartype.beartype"):
    # nnx.State is declared with typing.Hashable.
    warnings.simplefilter("ignore", BeartypeDecorHintPep585DeprecationWarning)
    import dovetail_train  # noqa: F401 - every module that it imports is checked


@pytest.fixture
def strict_promotion():
    """Mixed dtypes are an error. Not everywhere: Optax's Adam mixes them."""
    with jax.numpy_dtype_promotion("strict"):
        yield


@pytest.fixture
def unchecked():
    """Without the types that this suite checks, as in a user's program."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def on_eight_devices():
    """Runs a program of tests/programs with eight CPU devices; what it writes, from JSON.

    The programs compute on one device first, and then call `forced_devices.stop_caching`.
    """

    def run(name, *arguments):
        program = Path(__file__).parent / "programs" / name
        done = warm_start.run([program, *arguments], env=forced_devices.environment(8, cached=True))
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return run

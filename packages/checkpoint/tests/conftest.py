# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Strictness for the tests of this package alone, and the state that they save."""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

import forced_devices

with jaxtyping.install_import_hook("dovetail_checkpoint", "beartype.beartype"):
    import dovetail_checkpoint  # noqa: F401

jax.config.update("jax_num_cpu_devices", 2)  # for what goes another way over several devices
jax.config.update("jax_enable_compilation_cache", False)  # see scripts/forced_devices.py

PROGRAMS = Path(__file__).parent / "programs"
HANG_S = 900  # only a program that hangs takes this long


@pytest.fixture(autouse=True)
def strict_promotion():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def unchecked():
    """Leaves the checking of types to the library's own errors, as users see them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


class Position:
    """A data iterator's position: the object of these tests."""

    def __init__(self, row: int) -> None:
        self.row = row

    def get_state(self) -> dict:
        return {"row": self.row, "shards": ["a", "b"], "epoch": None}

    def set_state(self, state: dict) -> None:
        self.row = state["row"]


@pytest.fixture(scope="session")
def position():
    """Position(row): an object with get_state and set_state."""
    return Position


class State:
    """An object with the state that it is given."""

    def __init__(self, state) -> None:
        self.state = state

    def get_state(self):
        return self.state

    def set_state(self, state) -> None:
        self.state = state


@pytest.fixture(scope="session")
def stateful():
    """stateful(state): an object with get_state and set_state."""
    return State


@pytest.fixture
def training_state():
    """training_state(seed): model, optimizer, key and step, odd shapes and random values."""
    return _training_state


def _training_state(seed: int) -> dict:
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    model = {
        "embed": normal(37, 5),
        "layers": [{"w": normal(5, 7)}, {"w": normal(7, 5)}],
        "scale": normal(5).astype(jnp.bfloat16),
    }
    with jax.numpy_dtype_promotion("standard"):  # optax adds int32 and float32
        optimizer = optax.adamw(1e-3)
        _, moments = optimizer.update(model, optimizer.init(model), model)
    train = {"opt": moments, "step": jnp.int32(seed), "key": jax.random.key(seed)}
    return {"model": model, "train": train}


@pytest.fixture(scope="session")
def assert_same():
    """assert_same(a, b): equal structure, kinds, dtypes and bits."""
    return _assert_same


def _assert_same(a, b) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert type(x) is type(y)
        if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            assert x.dtype == y.dtype
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        x, y = np.asarray(x), np.asarray(y)
        assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


@pytest.fixture
def run_program():
    """run_program(name, *args): what tests/programs/NAME prints, run in a process of its own."""
    return _run_program


def _run_program(name: str, *args: object, devices: int = 1) -> str:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / name), *map(str, args)],
        env=forced_devices.environment(devices),
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

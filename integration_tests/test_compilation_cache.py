# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The compilation cache of the suites: found again, bounded, repaired, never why a run fails.

Programs on several devices stay out of it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import compilation_cache
import forced_devices

SUITE = """
import jax, jax.numpy as jnp
def test_it():
    assert float(jax.jit(lambda x: (x * 3).sum())(jnp.arange(4.0))) == 18.0
"""
DEVICES = """
import glob, os
import jax, jax.numpy as jnp
import forced_devices

entries = lambda: len(glob.glob(os.environ["JAX_COMPILATION_CACHE_DIR"] + "/*-cache"))
doubled = jax.jit(lambda x: 2 * x)
doubled(jnp.ones(8))
alone = entries()
forced_devices.stop_caching()
mesh = jax.make_mesh((2,), ("x",))
doubled(jax.device_put(jnp.ones(8), jax.NamedSharding(mesh, jax.P("x"))))
print(alone > 0, entries() - alone)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache directory, with nothing in it and no cache chosen."""
    for name in [name for name in os.environ if name.startswith("JAX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.thorough
def test_a_suite_keeps_its_programs_and_damaged_ones_are_replaced(home, checkout):
    def run() -> tuple[str, dict[Path, int]]:
        output, files = checkout.run(), (home / "dovetail/compiled").glob("*-cache")
        return output, {path: path.stat().st_ino for path in files}

    checkout.write(SUITE)
    whole = run()[1]
    assert run()[1] == whole != {}  # a second process compiles nothing
    for path in whole:
        path.write_bytes(b"\x28\xb5\x2f\xfd\x20 cut")
    assert "Error reading persistent compilation cache entry" in run()[0]
    output, again = run()  # it writes what the repair took away
    assert "Error reading" not in output
    assert again.keys() == whole.keys()


def test_a_cache_of_the_users_own_is_respected_and_a_suite_without_a_folder_passes(home, checkout):
    assert compilation_cache.choose({"JAX_COMPILATION_CACHE_DIR": "mine"}) == ({}, "")
    home.write_text("a file, where the folder should be")
    checkout.write(SUITE)
    assert "compilation cache: off, so everything is compiled anew: " in checkout.run()


def test_trim_deletes_the_entries_unused_for_longest(tmp_path):
    (tmp_path / "a").mkdir()
    for age_s, name in enumerate(("newer", "new", "old", "older")):
        path = tmp_path / f"a/{name}-cache"
        path.write_bytes(b"x" * 100)
        os.utime(path, (2_000_000_000 - age_s,) * 2)
    (tmp_path / "a/notes").write_bytes(b"x" * 1000)  # not an entry
    for limit, kept in {400: 5, 250: 3}.items():
        compilation_cache.trim(tmp_path, limit)
        assert len(list(tmp_path.glob("a/*"))) == kept
    assert {path.name for path in tmp_path.glob("a/*")} == {"new-cache", "newer-cache", "notes"}


def test_repair_deletes_the_program_that_was_named_and_no_other(tmp_path):
    for name in ("jit_f-1a", "jit_f-2b", "jit_ff-4d", "jit_[f]-5e"):
        (tmp_path / f"{name}-cache").touch()
    for begin, name in {"Error reading": "jit_f", "Error writing": "jit_[f]", "": "jit_ff"}.items():
        text = f"{begin} persistent compilation cache entry for '{name}': ZstdError: cut"
        compilation_cache.repair(tmp_path, text)
    assert {path.name for path in tmp_path.iterdir()} == {"jit_ff-4d-cache"}


@pytest.mark.parametrize("cached, expected", [(True, "True 0\n"), (False, "False 0\n")])
def test_a_program_on_several_devices_stays_out(home, monkeypatch, cached, expected):
    home.mkdir()
    own = {"JAX_COMPILATION_CACHE_DIR": str(home), "JAX_ENABLE_COMPILATION_CACHE": "true"}
    for name, value in {**own, **compilation_cache.SETTINGS}.items():
        monkeypatch.setenv(name, value)
    env = forced_devices.environment(2, cached=cached)
    assert subprocess.check_output([sys.executable, "-c", DEVICES], env=env, text=True) == expected

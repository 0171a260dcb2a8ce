# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The compilation cache of the suites: found again, bounded, repaired, never why a run fails."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import compilation_cache
import workspace

PROGRAM = """
import jax, jax.monitoring, jax.numpy as jnp
counts = dict.fromkeys(["compile_requests_use_cache", "cache_hits"], 0)
def count(event, **_):
    name = event.rsplit("/", 1)[1]
    if name in counts:
        counts[name] += 1
jax.monitoring.register_event_listener(count)
x = jnp.arange(12.0).reshape(3, 4)
print(float(jax.jit(lambda x: jnp.tanh(x @ x.T).sum())(x)), *counts.values())
"""
SUITE = """
import jax, jax.numpy as jnp
def test_it(tmp_path):
    x = jnp.arange(4.0)  # a program, as is each line below
    assert float(jax.jit(lambda x: (x * 3).sum())(x)) == 18.0
    assert float(jnp.cumsum(x)[-1]) == 6.0
"""


def environment(home: Path, **more: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    return own | {"XDG_CACHE_HOME": str(home), "JAX_PLATFORMS": "cpu", **more}


def run(variables: dict[str, str]) -> tuple[float, int, int]:
    """The program's result, its programs that could come from the cache, those that did."""
    line = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(line, env=variables, capture_output=True, text=True, check=True)
    value, requests, hits = done.stdout.split()
    return float(value), int(requests), int(hits)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache directory, with nothing in it and no cache chosen."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_second_process_compiles_nothing(home):
    variables, reason = compilation_cache.choose({})
    assert reason == ""
    folder = Path(variables["JAX_COMPILATION_CACHE_DIR"])
    assert folder.is_relative_to(home / "dovetail/compiled")
    value, requests, hits = run(environment(home, **variables))
    assert requests > 0
    assert hits == 0
    assert len(list(folder.glob("*-cache"))) == requests
    assert run(environment(home, **variables)) == (value, requests, requests)


def test_another_processor_has_another_folder(monkeypatch):
    name = compilation_cache.kind()
    assert name == compilation_cache.kind()
    monkeypatch.setattr(compilation_cache.platform, "machine", lambda: "another")
    assert compilation_cache.kind() != name


@pytest.mark.parametrize(
    "given",
    [{"JAX_ENABLE_COMPILATION_CACHE": "false"}, {"JAX_COMPILATION_CACHE_DIR": "mine"}],
)
def test_what_the_user_said_is_respected(given, home):
    assert compilation_cache.choose(given) == ({}, "")
    assert not home.exists()


def test_trim_deletes_what_was_unused_for_longest_in_any_folder(tmp_path):
    for name, age_s in {"a/old": 30, "b/older": 40, "a/new": 10, "b/newer": 5}.items():
        path = tmp_path / f"{name}-cache"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 100)
        os.utime(path, (2_000_000_000 - age_s,) * 2)
    (tmp_path / "a/notes").write_bytes(b"x" * 1000)  # not an entry
    assert compilation_cache.trim(tmp_path, 400) == 0
    assert compilation_cache.trim(tmp_path, 250) == 2
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.glob("*/*")}
    assert left == {"a/new-cache", "b/newer-cache", "a/notes"}
    assert compilation_cache.trim(tmp_path / "nowhere") == 0


def test_repair_deletes_the_program_that_was_named_and_no_other(tmp_path):
    for name in ("jit_f-1a", "jit_f-2b", "jit_f-x-3c", "jit_ff-4d", "jit_[f]-5e"):
        (tmp_path / f"{name}-cache").touch()
    template = "Error {} persistent compilation cache entry for '{}': ZstdError: cut"
    assert compilation_cache.repair(tmp_path, template.format("reading", "jit_f"))
    assert compilation_cache.repair(tmp_path, template.format("writing", "jit_[f]"))
    assert not compilation_cache.repair(tmp_path, "another warning about 'jit_ff'")
    assert {path.name for path in tmp_path.iterdir()} == {"jit_f-x-3c-cache", "jit_ff-4d-cache"}


def test_a_flipped_bit_in_a_protected_entry_is_an_error_and_not_another_program(home):
    variables, _ = compilation_cache.choose({})
    folder = Path(variables["JAX_COMPILATION_CACHE_DIR"])
    value, requests, _ = run(environment(home, **variables))
    zstd = "zstd" in compilation_cache.kind()
    assert compilation_cache.protect(folder) == (requests if zstd else 0)
    assert compilation_cache.protect(folder) == 0
    rng = np.random.default_rng(1)
    for path in folder.glob("*-cache"):
        content = bytearray(path.read_bytes())
        content[rng.integers(8, len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(content)
    (folder / "jit_f-1a-cache").write_bytes(b"\x28\xb5\x2f\xfd\x20 cut")  # by a kill
    assert run(environment(home, **variables)) == (value, requests, 0)
    assert compilation_cache.protect(folder) == 0
    assert (folder / "jit_f-1a-cache").exists() != zstd


def damage(folder: Path) -> None:
    """Cuts, empties or scrambles every entry."""
    rng = np.random.default_rng(0)
    for i, path in enumerate(sorted(folder.glob("*-cache"))):
        content = path.read_bytes()
        path.write_bytes([content[: len(content) // 2], b"", rng.bytes(len(content))][i % 3])


def pytest_run(root: Path, home: Path) -> str:
    """The output of a suite of one test below the root conftest, which must pass."""
    test = root / "packages/one/tests/test_it.py"
    if not root.exists():
        test.parent.mkdir(parents=True)
        test.write_text(SUITE)
        shutil.copy(workspace.ROOT / "conftest.py", root)
        shutil.copy(workspace.ROOT / "pyproject.toml", root)
        shutil.copytree(workspace.ROOT / "scripts", root / "scripts")
    line = [sys.executable, "-m", "pytest", "-q", "packages/one/tests"]
    variables = environment(home)
    done = subprocess.run(
        line, cwd=root, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.slow
def test_damaged_entries_cost_time_and_one_line_and_are_replaced(tmp_path, home):
    root = tmp_path / "checkout"
    pytest_run(root, home)
    (folder,) = (home / "dovetail/compiled").iterdir()
    whole = {path.name for path in folder.glob("*-cache")}
    assert len(whole) >= 3
    damage(folder)
    second = pytest_run(root, home)
    (line,) = [x for x in second.splitlines() if x.startswith("compilation cache: ")]
    assert f"{len(whole)} entries could not be read or written and were compiled anew" in line
    assert "warnings summary" not in second
    pytest_run(root, home)  # writes what the repair took away
    assert {path.name for path in folder.glob("*-cache")} == whole
    assert "compilation cache" not in pytest_run(root, home)


def test_a_suite_without_a_cache_folder_passes_and_says_so(tmp_path, home):
    home.write_text("a file, where the folder should be")
    variables, reason = compilation_cache.choose({})
    assert variables == {}
    assert str(home) in reason
    output = pytest_run(tmp_path / "checkout", home)
    assert "compilation cache: off, so everything is compiled anew: " in output

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
import forced_devices
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


def test_the_folder_names_what_its_entries_hold_for(home, monkeypatch):
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    name = compilation_cache.kind()
    assert name.startswith(f"{python}-jaxlib")
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


def test_several_devices_stay_outside(home):
    variables, _ = compilation_cache.choose({})
    many = forced_devices.environment(2)
    assert forced_devices.environment(1).get("JAX_ENABLE_COMPILATION_CACHE") != "false"
    own = {name: many[name] for name in ("XLA_FLAGS", "JAX_ENABLE_COMPILATION_CACHE")}
    _, requests, hits = run(environment(home, **variables, **own))
    assert (requests, hits) == (0, 0)
    assert not list(Path(variables["JAX_COMPILATION_CACHE_DIR"]).iterdir())


def test_a_folder_that_cannot_be_made_turns_it_off_and_says_why(home):
    home.write_text("a file, where the folder should be")
    variables, reason = compilation_cache.choose({})
    assert variables == {}
    assert reason.startswith("off, so everything is compiled anew: ")
    assert str(home) in reason


def test_a_disk_without_room_turns_it_off_and_says_why(home, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compilation_cache.tempfile, "TemporaryFile", full)
    assert compilation_cache.choose({})[1].endswith("No space left on device")


def entries(folder: Path, sizes: dict[str, int], ages_s: dict[str, int]) -> None:
    for name, size in sizes.items():
        path = folder / name.split("/")[0] / f"{name.split('/')[1]}-cache"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        os.utime(path, (2_000_000_000 - ages_s[name],) * 2)


def test_trim_deletes_what_was_unused_for_longest_in_any_folder(tmp_path):
    ages = {"a/old": 30, "b/older": 40, "a/new": 10, "b/newer": 5}
    entries(tmp_path, dict.fromkeys(ages, 100), ages)
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


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A checkout with one suite of one test, and the root conftest."""
    root = tmp_path / "checkout"
    (root / "packages/one/tests").mkdir(parents=True)
    (root / "packages/one/tests/test_it.py").write_text(SUITE)
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(workspace.ROOT / name, root)
    shutil.copytree(workspace.ROOT / "scripts", root / "scripts")
    return root


def pytest_run(root: Path, home: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "pytest", "-q", "packages/one/tests"]
    variables = environment(home)
    return subprocess.run(
        line, cwd=root, env=variables, capture_output=True, text=True, check=False
    )


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
    assert run(environment(home, **variables)) == (value, requests, 0)


def test_protecting_deletes_what_a_kill_cut(home, tmp_path):
    if "zlib" in compilation_cache.kind():
        pytest.skip("zstandard is not installed: entries are in zlib, which has checksums")
    (tmp_path / "jit_f-1a-cache").write_bytes(b"\x28\xb5\x2f\xfd\x20 cut")
    assert compilation_cache.protect(tmp_path) == 0
    assert list(tmp_path.glob("*-cache")) == []


def damage(folder: Path) -> None:
    """Cuts, empties or scrambles every entry."""
    rng = np.random.default_rng(0)
    for i, path in enumerate(sorted(folder.glob("*-cache"))):
        content = path.read_bytes()
        path.write_bytes([content[: len(content) // 2], b"", rng.bytes(len(content))][i % 3])


@pytest.mark.slow
def test_damaged_entries_cost_time_and_one_line_and_are_replaced(suite, home):
    assert pytest_run(suite, home).returncode == 0
    (folder,) = (home / "dovetail/compiled").iterdir()
    whole = {path.name for path in folder.glob("*-cache")}
    assert len(whole) >= 3
    damage(folder)
    second = pytest_run(suite, home)
    assert second.returncode == 0, second.stdout
    (line,) = [x for x in second.stdout.splitlines() if x.startswith("compilation cache: ")]
    assert f"{len(whole)} entries could not be read or written and were compiled anew" in line
    assert "warnings summary" not in second.stdout
    pytest_run(suite, home)  # writes what the repair took away
    assert {path.name for path in folder.glob("*-cache")} == whole
    assert "compilation cache" not in pytest_run(suite, home).stdout


def test_a_suite_without_a_cache_folder_passes_and_says_so(suite, home):
    home.write_text("no folder")
    done = pytest_run(suite, home)
    assert done.returncode == 0, done.stdout
    assert "compilation cache: off, so everything is compiled anew: " in done.stdout

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sidecars are read where nobody else can have written them, and nowhere else."""

import dataclasses
import hashlib
import json
import logging
import os
import pickle
import pwd
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest

from dovetail_serve import IntegrityError, load
from dovetail_serve.bundle.folder import open_bundle
from dovetail_serve.loading import aot
from dovetail_serve.loading.precompile import precompile
from dovetail_serve.testing import save_mlp

LOGGER = "dovetail_serve.loading.aot"
# The program for 8 rows, and the one for any number, which the self test runs.
COMPILED = 2
X = np.random.default_rng(3).normal(size=(5, 6)).astype("float32")


class Planted:
    """An object whose unpickling creates a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (os.mkdir, (str(self.mark),))


@dataclasses.dataclass
class Prepared:
    """A bundle and the user's cache with its sidecar."""

    bundle: Path
    home: Path

    @property
    def place(self) -> Path:
        return sidecar(self.bundle)

    def plant(self, mark: Path) -> None:
        """Replaces the payload for 8 rows by one that creates `mark`, and corrects the index."""
        self.write(pickle.dumps(Planted(mark)))

    def write(self, payload: bytes) -> None:
        (self.place / "8.executable").write_bytes(payload)
        sha256 = hashlib.sha256(payload).hexdigest()
        self.edit(programs={"8": {"file": "8.executable", "bytes": len(payload), "sha256": sha256}})

    def edit(self, **fields) -> None:
        index = self.place / "index.json"
        index.write_text(json.dumps(json.loads(index.read_text()) | fields))


def sidecar(bundle: Path) -> Path:
    folder = open_bundle(bundle)
    key = aot.machine_key(folder.manifest, jax.local_devices()[:1])
    return aot.sidecar_path(folder.digest, key, aot.cache_root())


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    root = tmp_path_factory.mktemp("original")
    expected = save_mlp(root / "bundle", batch_sizes=(8,))
    precompile(root / "bundle", cache=aot.cache_root(root / "cache"))
    return root, expected(X)


@pytest.fixture
def prepared(original, tmp_path, monkeypatch):
    shutil.copytree(original[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Prepared(bundle=tmp_path / "bundle", home=tmp_path / "cache")


@pytest.fixture
def compilations():
    names = []

    def listen(name: str, _: float, **__: object) -> None:
        if name == "/jax/core/compile/backend_compile_duration":
            names.append(name)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def test_the_cache_is_private_and_has_nothing_else(original):
    cache = original[0] / "cache"
    (place,) = {file.parent for file in cache.rglob("index.json")}
    assert sorted(path.name for path in place.iterdir()) == ["8.executable", "index.json"]
    assert [path.name for path in aot.cache_root(cache).iterdir()] == [place.parent.name]
    for path in [cache, *cache.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


@pytest.mark.thorough
def test_a_sidecar_is_loaded_in_place_of_compiling(prepared, compilations, original, caplog):
    y = load(prepared.bundle)(x=X)["y"]
    assert compilations == []
    compiled = load(prepared.bundle, sidecar=False)(x=X)["y"]
    assert len(compilations) == COMPILED
    np.testing.assert_array_equal(y, compiled)
    # float32 sums of at most 6 terms.
    np.testing.assert_allclose(y, original[1], rtol=1e-5, atol=1e-6)
    assert LOGGER not in {record.name for record in caplog.records}


@pytest.mark.thorough
def test_loading_writes_nothing(prepared):
    def state():
        return {path: path.stat().st_mtime_ns for path in prepared.home.rglob("*")}

    before = state()
    load(prepared.bundle)(x=X)
    shutil.rmtree(prepared.place)
    after = state()
    load(prepared.bundle)(x=X)
    assert state() == after
    assert before.keys() > after.keys()


@pytest.mark.costly("the program is compiled anew")
def test_without_a_cache_the_program_is_compiled_silently(
    prepared, compilations, caplog, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "absent"))
    load(prepared.bundle)(x=X)
    assert len(compilations) == COMPILED
    assert LOGGER not in {record.name for record in caplog.records}


def test_where_this_user_may_not_look_there_is_no_sidecar(prepared, compilations, monkeypatch):
    real = os.stat

    def refused(path, *args, **options):
        if isinstance(path, str | os.PathLike) and Path(path).is_relative_to(prepared.home):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **options)

    monkeypatch.setattr(os, "stat", refused)  # of another user's home; root may look anywhere
    load(prepared.bundle)(x=X)
    assert len(compilations) == COMPILED


@pytest.fixture
def homeless(monkeypatch):
    """A user without HOME and without an entry in the password file, as in some containers."""

    def missing(uid):
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", missing)


def test_without_a_home_there_is_no_sidecar(prepared, homeless, compilations):
    load(prepared.bundle)(x=X)
    assert len(compilations) == COMPILED


def test_without_a_home_the_cache_has_no_place(homeless):
    message = rf"must have a place, got no home .* user {os.geteuid()}; set XDG_CACHE_HOME"
    with pytest.raises(RuntimeError, match=message):
        aot.cache_root()


def test_for_other_rows_the_program_is_compiled_silently(prepared, compilations, caplog):
    prepared.edit(programs={})
    load(prepared.bundle)(x=X)
    assert len(compilations) == COMPILED
    assert LOGGER not in {record.name for record in caplog.records}


def test_a_relative_cache_home_is_ignored(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert aot.cache_root() == Path.home() / ".cache" / "dovetail" / "serve"


def test_the_planted_payload_runs_where_the_user_alone_can_write(prepared, tmp_path):
    """The tests below show nothing unless this payload runs once it is trusted."""
    prepared.plant(tmp_path / "mark")
    load(prepared.bundle)(x=X)
    assert (tmp_path / "mark").exists()


def writable_sidecar(prepared: Prepared) -> None:
    prepared.place.chmod(0o770)


def writable_payload(prepared: Prepared) -> None:
    (prepared.place / "8.executable").chmod(0o606)


def writable_index(prepared: Prepared) -> None:
    (prepared.place / "index.json").chmod(0o660)


def writable_cache(prepared: Prepared) -> None:
    aot.cache_root().chmod(0o777)


def writable_above(prepared: Prepared) -> None:
    prepared.home.chmod(0o777)


def sticky_cache(prepared: Prepared) -> None:
    """Others could create entries, though they could not rename any."""
    aot.cache_root().chmod(0o1777)


def linked_sidecar(prepared: Prepared) -> None:
    place = prepared.place
    place.rename(prepared.home / "elsewhere")
    place.symlink_to(prepared.home / "elsewhere")


def linked_bundle(prepared: Prepared) -> None:
    parent = prepared.place.parent
    parent.rename(prepared.home / "elsewhere")
    parent.symlink_to(prepared.home / "elsewhere")


def linked_payload(prepared: Prepared) -> None:
    payload = prepared.place / "8.executable"
    payload.rename(prepared.home / "elsewhere")
    payload.symlink_to(prepared.home / "elsewhere")


def payload_elsewhere(prepared: Prepared) -> None:
    index = json.loads((prepared.place / "index.json").read_text())
    (prepared.place / "8.executable").rename(prepared.place.parent / "8.executable")
    programs = {"8": index["programs"]["8"] | {"file": "../8.executable"}}
    prepared.edit(programs=programs)


def changed_payload(prepared: Prepared) -> None:
    """Changes the last byte, which ends the pickle after its call."""
    payload = prepared.place / "8.executable"
    payload.write_bytes(payload.read_bytes()[:-1] + b"0")


def longer_payload(prepared: Prepared) -> None:
    payload = prepared.place / "8.executable"
    payload.write_bytes(payload.read_bytes() + b"0")


def other_bundle(prepared: Prepared) -> None:
    prepared.edit(bundle="sha256:" + "0" * 64)


def other_jaxlib(prepared: Prepared) -> None:
    index = json.loads((prepared.place / "index.json").read_text())
    prepared.edit(key=index["key"] | {"jaxlib": "0.0.1"})


def other_schema(prepared: Prepared) -> None:
    prepared.edit(schema=2)


def unknown_field(prepared: Prepared) -> None:
    prepared.edit(more=1)


def no_json(prepared: Prepared) -> None:
    (prepared.place / "index.json").write_text("{")


def pipe_for_a_payload(prepared: Prepared) -> None:
    (prepared.place / "8.executable").unlink()
    os.mkfifo(prepared.place / "8.executable", 0o600)


MUST = "must belong to this user and be writable by nobody else, got user="


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (writable_sidecar, MUST),
        (writable_payload, MUST),
        (writable_index, MUST),
        (writable_cache, MUST),
        (writable_above, MUST),
        (sticky_cache, MUST),
        (linked_sidecar, ""),
        (linked_bundle, ""),
        (linked_payload, "symbolic links"),
        (payload_elsewhere, "must name files beside it, got '../8.executable'; run precompile"),
        (changed_payload, "8.executable differs from its digest; run precompile again"),
        (longer_payload, "8.executable differs from its digest; run precompile again"),
        (other_bundle, "is of another bundle or machine; run precompile again"),
        (other_jaxlib, "is of another bundle or machine; run precompile again"),
        (other_schema, "is of another bundle or machine; run precompile again"),
        (unknown_field, "more is not known"),
        (no_json, "is not JSON"),
        (pipe_for_a_payload, "must be a file"),
    ],
)
def test_what_another_user_can_have_written_never_runs(
    prepared, tmp_path, change, reason, compilations, caplog, original
):
    prepared.plant(tmp_path / "mark")
    change(prepared)
    y = load(prepared.bundle)(x=X)["y"]
    assert not (tmp_path / "mark").exists()
    assert len(compilations) == COMPILED
    # float32 sums of at most 6 terms.
    np.testing.assert_allclose(y, original[1], rtol=1e-5, atol=1e-6)
    (message,) = [r.getMessage() for r in caplog.records if r.name == LOGGER]
    assert f"the sidecar {prepared.place} is ignored and the program compiled: " in message
    assert reason in message


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
@pytest.mark.parametrize("name", [".", "index.json", "8.executable", "../../..", "../../../.."])
def test_files_of_another_user_never_run(prepared, tmp_path, name, caplog):
    prepared.plant(tmp_path / "mark")
    os.chown(prepared.place / name, 12345, -1)
    load(prepared.bundle)(x=X)
    assert not (tmp_path / "mark").exists()
    (message,) = [r.getMessage() for r in caplog.records if r.name == LOGGER]
    assert "got user=12345 mode=" in message
    assert "; type chmod go-w " in message


def test_a_payload_in_a_bundle_is_refused(prepared, tmp_path):
    prepared.plant(tmp_path / "mark")
    shutil.move(prepared.place / "8.executable", prepared.bundle / "programs/8.executable")
    with pytest.raises(IntegrityError, match=r"manifest\.json does not list it"):
        load(prepared.bundle)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda payload: payload[: len(payload) // 2],
        lambda payload: b"",
        lambda payload: b"no pickle",
        lambda payload: pickle.dumps((None, [], False)),
    ],
    ids=["truncated", "empty", "other", "wrong"],
)
def test_a_payload_that_does_not_load_is_logged(prepared, damage, compilations, caplog, original):
    prepared.write(damage((prepared.place / "8.executable").read_bytes()))
    y = load(prepared.bundle)(x=X)["y"]
    # float32 sums of at most 6 terms.
    np.testing.assert_allclose(y, original[1], rtol=1e-5, atol=1e-6)
    assert len(compilations) == COMPILED
    (record,) = [record for record in caplog.records if record.name == LOGGER]
    assert record.levelno == logging.WARNING
    assert "is ignored and the program compiled" in record.getMessage()


def test_the_key_holds_versions_devices_and_options(prepared, monkeypatch):
    manifest, devices = open_bundle(prepared.bundle).manifest, jax.local_devices()[:1]
    key = aot.machine_key(manifest, devices)
    assert (key["jax"], key["platform"]) == (jax.__version__, "cpu")
    assert len(key["cpu"].split()[-1]) == 64
    (cpu,) = [platform for platform in manifest.platforms if platform.name == "cpu"]
    of_cpu = {"compiler_options": {"a": 1}, "layouts": {"**": (1, 0)}, "weights": "bfloat16"}
    changes = {"x64": dataclasses.replace(manifest, x64=True)}
    for name, value in of_cpu.items():
        changed = dataclasses.replace(cpu, **{name: value})
        changes[name] = dataclasses.replace(manifest, platforms=(changed,))
    for name, changed in changes.items():
        other = aot.machine_key(changed, devices)
        assert {k for k in key if key[k] != other[k]} == {name}
        paths = {aot.sidecar_path("sha256:1", k, prepared.home) for k in (key, other)}
        assert len(paths) == 2
    monkeypatch.setenv("XLA_FLAGS", "--xla_other=1")
    assert aot.machine_key(manifest, devices)["xla_flags"] == "--xla_other=1"


@pytest.mark.parametrize("flags", ["flags\t\t: avx2 fma", "Features\t: fma avx2"])
def test_the_features_of_the_cpu_are_hashed_in_any_order(tmp_path, monkeypatch, flags):
    (tmp_path / "cpuinfo").write_text(f"model name\t: Some CPU: 1\n{flags}\n\n{flags} other\n")
    monkeypatch.setattr(aot, "_CPUINFO", tmp_path / "cpuinfo")
    cpu = aot._cpu.__wrapped__()
    assert cpu.endswith(f"Some CPU: 1 {hashlib.sha256(b'avx2 fma').hexdigest()}")


def test_without_cpuinfo_the_machine_names_the_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(aot, "_CPUINFO", tmp_path / "absent")
    assert aot._cpu.__wrapped__().split()[0] == os.uname().machine

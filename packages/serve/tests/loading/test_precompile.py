# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`precompile` keeps programs that a fresh process loads without compiling, bit for bit."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest

from dovetail_serve import BundleError, HostFunction, IntegrityError, Tensor, export
from dovetail_serve._durable import new_directory
from dovetail_serve.bundle.folder import open_bundle
from dovetail_serve.loading import aot
from dovetail_serve.loading.precompile import _move, compare, precompile
from dovetail_serve.loading.precompile_child import ChildReport
from dovetail_serve.testing import save_mlp

FRESH = """
import json, sys
import jax
import numpy as np
from dovetail_serve import load

compilations = []

def listen(name, seconds, **_):
    if name == "/jax/core/compile/backend_compile_duration":
        compilations.append(name)

jax.monitoring.register_event_duration_secs_listener(listen)
results, counts = [], []
cases = [(ids, True) for ids in json.loads(sys.argv[2])]
for ids, sidecar in (*cases, (cases[0][0], False)):
    devices = [jax.devices()[i] for i in ids] or None
    model = load(sys.argv[1], verify="none", devices=devices, sidecar=sidecar)
    placed = len(compilations)
    outputs = []
    for rows in model.batch_sizes or (None,):
        inputs, _ = model.golden()
        if rows is not None:
            inputs = {k: np.resize(v, (rows, *v.shape[1:])) for k, v in inputs.items()}
        outputs.append(model.execute(inputs, rows))
    results.append(outputs)
    counts.append(len(compilations) - placed)
for outputs in results:
    for left, right in zip(outputs, results[0], strict=True):
        for name in left:
            np.testing.assert_array_equal(left[name], right[name], strict=True)
print(json.dumps(counts))
"""

SHARDED = """
import sys
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from dovetail_serve import Tensor, export
from dovetail_serve.loading.precompile import precompile

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_platforms", "cpu")
mesh = Mesh(np.array(jax.devices()[:2]), ("model",))
w = np.random.default_rng(0).normal(size=(6, 8)).astype("float32")
placed = jax.device_put(w, NamedSharding(mesh, PartitionSpec(None, "model")))
fn = lambda p, *, x: {"y": jax.numpy.tanh(x @ p["w"]) @ p["w"].T}
x = np.random.default_rng(1).normal(size=(3, 6)).astype("float32")
export(fn, {"w": placed}, inputs={"x": Tensor(("batch", 6), "float32")}, example={"x": x},
       batch_sizes=(3,), platforms=("cpu",)).save(sys.argv[1])
precompile(sys.argv[1], devices=[jax.devices()[i] for i in (3, 1)])
"""


def run(program: str, *arguments: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A bundle, its cache, and the result of `precompile` with a filled persistent cache."""
    root = tmp_path_factory.mktemp("prepared")
    save_mlp(root / "bundle", batch_sizes=(1, 2, 8))
    persistent = {
        "JAX_COMPILATION_CACHE_DIR": str(root / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "XDG_CACHE_HOME": str(root / "cache"),
    }
    filled = run(FRESH, root / "bundle", "[[]]", **persistent)
    assert json.loads(filled) == [3, 3]
    entries = sorted(os.listdir(root / "jax"))
    assert len(entries) >= 3
    with pytest.MonkeyPatch.context() as patch:
        for name, value in persistent.items():
            patch.setenv(name, value)
        programs = precompile(root / "bundle")
    assert {name for name in os.listdir(root / "jax") if name.endswith("-cache")} == {
        name for name in entries if name.endswith("-cache")
    }
    return root, programs, persistent


@pytest.mark.thorough("processes that import JAX anew")
@pytest.mark.capability("programs compiled ahead of time")
def test_a_fresh_process_compiles_nothing_and_computes_equal_bits(prepared):
    root, _, persistent = prepared
    assert json.loads(run(FRESH, root / "bundle", "[[]]", **persistent)) == [0, 3]


@pytest.mark.thorough
def test_programs_with_functions_of_lapack(tmp_path, monkeypatch):
    """Without their addresses, the process that checks the executable would end by a signal."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    x = np.random.default_rng(0).normal(size=(3, 4, 4)).astype("float32")
    export(
        lambda p, *, x: {"r": jax.numpy.linalg.qr(x)[1] * p["scale"]},
        {"scale": np.ones(1, "float32")},
        inputs={"x": Tensor(("batch", 4, 4), "float32")},
        example={"x": x},
        batch_sizes=(1,),
        platforms=("cpu",),
    ).save(tmp_path / "1")
    (program,) = precompile(tmp_path / "1")
    assert b"lapack_" in program.file.read_bytes()


@pytest.mark.thorough
def test_the_result_names_each_payload(prepared):
    root, programs, _ = prepared
    assert [program.rows for program in programs] == [1, 2, 8]
    for program in programs:
        assert program.file.is_relative_to(aot.cache_root(root / "cache"))
        assert program.file.stat().st_size == program.bytes > 0
        assert min(program.compile_s, program.load_s) > 0
    # Wall time: on a busy machine a single load may take longer than its compilation.
    assert max(p.compile_s for p in programs) > min(p.load_s for p in programs)


@pytest.mark.thorough
def test_sharded_models_compile_nothing_on_their_devices(tmp_path):
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    # The options of jax.config count, not these of the environment.
    run(SHARDED, tmp_path / "bundle", JAX_PLATFORMS="tpu", JAX_NUM_CPU_DEVICES="1", **cache)
    counts = run(FRESH, tmp_path / "bundle", "[[3, 1], [1, 3]]", JAX_NUM_CPU_DEVICES="4", **cache)
    # Other devices have another key; the last count is without a sidecar.
    assert json.loads(counts) == [0, 1, 1]


@pytest.mark.thorough
def test_64_bit_types_host_functions_and_no_batch_axis(tmp_path):
    with jax.enable_x64(True):
        export(
            lambda p, *, ids: {"sum": p["table"][ids].sum(0), "last": ids[-1:]},
            {"table": np.random.default_rng(0).normal(size=(7, 3))},
            inputs={"ids": Tensor((4,), "int64")},
            example={"ids": np.array([2, 0, 6, 1])},
            before=HostFunction("tokenize", {"text": Tensor((1,), "bytes")}),
            platforms=("cpu",),
        ).save(tmp_path / "bundle")
    first = precompile(tmp_path / "bundle", cache=aot.cache_root(tmp_path / "cache"))
    assert [program.rows for program in first] == [None]
    fresh = FRESH.replace("sidecar=sidecar", "sidecar=sidecar, functions={'tokenize': None}")
    counts = run(fresh, tmp_path / "bundle", "[[]]", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert json.loads(counts) == [0, 1]
    # A second run replaces the damaged sidecar of the first.
    first[0].file.write_bytes(b"damaged")
    (first[0].file.parent / "old").touch()
    second = precompile(tmp_path / "bundle", cache=aot.cache_root(tmp_path / "cache"))
    assert second[0].file == first[0].file
    assert second[0].file.stat().st_size == first[0].bytes
    assert sorted(os.listdir(second[0].file.parent)) == ["all.executable", "index.json"]


@pytest.mark.thorough
def test_a_damaged_bundle_is_refused_before_any_process(tmp_path):
    save_mlp(tmp_path / "bundle", batch_sizes=(8,))
    (tmp_path / "bundle/weights.safetensors").chmod(0o644)  # weights are read-only
    with open(tmp_path / "bundle/weights.safetensors", "r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    with pytest.raises(IntegrityError, match=r"weights\.safetensors"):
        precompile(tmp_path / "bundle", cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


@pytest.mark.thorough
def test_a_bundle_for_another_platform_is_refused(tmp_path):
    export(
        lambda p, *, x: {"y": x * p["w"]},
        {"w": np.float32(2)},
        inputs={"x": Tensor((3,), "float32")},
        example={"x": np.arange(3, dtype="float32")},
        platforms=("tpu",),
    ).save(tmp_path / "bundle")
    with pytest.raises(BundleError, match=r"must have a program for this platform, 'cpu'"):
        precompile(tmp_path / "bundle", cache=tmp_path / "cache")
    assert os.listdir(tmp_path / "cache") == []


@pytest.mark.thorough
def test_a_cache_of_others_is_refused(tmp_path):
    save_mlp(tmp_path / "bundle", batch_sizes=(8,))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(PermissionError, match=r"writable by nobody else.* mode=777; type chmod"):
        precompile(tmp_path / "bundle", cache=tmp_path / "cache")
    assert os.listdir(tmp_path / "cache") == []


@pytest.mark.thorough
def test_a_cache_that_cannot_be_made_is_named(tmp_path):
    save_mlp(tmp_path / "bundle", batch_sizes=(8,))
    (tmp_path / "file").touch()
    message = r"the cache must be a directory that .*, got .*file.*; set XDG_CACHE_HOME"
    with pytest.raises(NotADirectoryError, match=message):
        precompile(tmp_path / "bundle", cache=tmp_path / "file" / "cache")


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("moment", ["before", "meanwhile"])
def test_one_of_two_sidecars_that_are_moved_at_once_stays(tmp_path, monkeypatch, moment, old):
    place = tmp_path / "bundle" / "key"
    for name in ("first", "second", *(["bundle/key"] if old else [])):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "index.json").write_text(name)

    @contextlib.contextmanager
    def overtaken(path):
        """Another process moves its sidecar there before this one is there."""
        monkeypatch.undo()
        if moment == "before":
            _move(tmp_path / "second", place, tmp_path)
        with new_directory(path) as directory:
            yield directory
            if moment == "meanwhile":
                _move(tmp_path / "second", place, tmp_path)

    monkeypatch.setattr("dovetail_serve.loading.precompile.new_directory", overtaken)
    _move(tmp_path / "first", place, tmp_path)
    assert (place / "index.json").read_text() == "second"
    # No remains of the other one.
    assert os.listdir(place.parent) == ["key"]
    assert sorted(os.listdir(tmp_path)) == ["bundle", "first", "second"]


@pytest.mark.thorough
def test_a_process_that_fails_is_quoted(tmp_path, monkeypatch):
    save_mlp(tmp_path / "bundle", batch_sizes=(8,))
    # XLA ends a process whose flags it does not know.
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag=1")
    with pytest.raises(RuntimeError, match=r"got exit code -?\d+ of 'compile'") as caught:
        precompile(tmp_path / "bundle", cache=tmp_path / "cache")
    assert "--xla_no_such_flag=1" in str(caught.value)
    assert "; load the bundle without a sidecar" in str(caught.value)
    assert os.listdir(tmp_path / "cache") == []


def test_a_missing_bundle_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        precompile(tmp_path / "missing", cache=tmp_path)


def test_other_bits_or_another_machine_are_refused(tmp_path):
    save_mlp(tmp_path, batch_sizes=(8,))
    folder = open_bundle(tmp_path)
    report = ChildReport(key={"cpu": "a"}, seconds={"8": 0.5}, results={"8": "1" * 64})
    compare(folder, report, report)
    for other, message in (
        (dataclasses.replace(report, results={"8": "2" * 64}), "equal bits.* for 8 rows of "),
        (dataclasses.replace(report, key={"cpu": "b"}), "must see one machine"),
    ):
        with pytest.raises(RuntimeError, match=message):
            compare(folder, report, other)

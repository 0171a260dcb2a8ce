# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import jax
import pytest

from dovetail_cluster import BuildError, Traffic, compiled, devices
from dovetail_cluster.absent.compiled import Compiled, _judged

# Functions defined inside another are pickled whole: the worker cannot import this file.


def layers(sizes, *, width=16, rows=8, count=5):
    """Returns build: a step of `count` scanned layers, rows over data and columns over tensor."""

    def build(devices):
        import jax.numpy as jnp
        from jax.sharding import AxisType, NamedSharding, PartitionSpec

        auto = (AxisType.Auto,) * 2
        mesh = jax.make_mesh(sizes, ("data", "tensor"), axis_types=auto, devices=devices)

        def shaped(*shape, spec):
            sharding = NamedSharding(mesh, PartitionSpec(*spec))
            return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

        def step(weights, x):
            def layer(x, w):
                return jnp.tanh(x @ w[0]) @ w[1], None

            return jax.lax.scan(layer, x, weights)[0], weights

        weights = (
            shaped(count, width, 2 * width, spec=(None, None, "tensor")),
            shaped(count, 2 * width, width, spec=(None, "tensor", None)),
        )
        x = shaped(rows, width, spec=("data",))
        return jax.jit(step, donate_argnums=0).lower(weights, x)

    return build


@pytest.fixture(scope="module")
def program():
    return compiled(layers((4, 2)), target=devices("CPU x 8"))


@pytest.mark.capability("Compile for a mesh of devices that are absent")
def test_sizes_are_those_of_the_shards(program):
    weights, x = 2 * 5 * 16 * 32 * 4 // 2, 8 * 16 * 4 // 4
    assert program.fits
    assert program.reason == ""
    assert program.argument_bytes == weights + x
    assert program.alias_bytes == weights  # donated, and returned
    assert 0 <= program.output_bytes - weights - x <= 64  # and a table of the results
    assert program.temp_bytes > 0
    assert program.peak_bytes == program.output_bytes + x + program.temp_bytes
    assert program.executable_bytes > 1000
    assert min(program.lower_s, program.compile_s) > 0


@pytest.mark.capability("Collectives with bytes, axes and the link that they cross")
def test_a_collective_counts_as_often_as_its_layer_runs(program):
    rows = 8 // 4
    expected = Traffic(count=5, bytes=5 * rows * 16 * 4, axes=("tensor",), link="memory", devices=2)
    assert program.collectives == {"all-reduce": (expected,)}
    assert program.unknown_loops == 0
    assert program.mesh == {"data": 4, "tensor": 2}
    assert program.sent_bytes("memory") == expected.bytes  # 2 (n - 1) / n of it
    assert program.sent_bytes("ici", "dcn") == 0


def test_a_program_prints_as_a_table(program):
    table = str(program).splitlines()
    assert table[0] == "CPU x 8, data=4 tensor=2: fits"
    assert table[-1].split() == ["all-reduce", "5", "x", "640", "B", "tensor", "memory"]
    assert "  arguments           10.12 KiB" in table


def test_a_program_is_json(program):
    values = json.loads(json.dumps(program.json()))
    assert values["target"] == "CPU x 8"
    assert values["peak_bytes"] == program.peak_bytes
    assert values["collectives"]["all-reduce"][0]["count"] == 5
    assert values["versions"] == {"jax": jax.__version__}


def test_an_object_with_jit_and_arguments_is_a_program():
    def build(devices):
        import types

        mesh = jax.make_mesh((2,), ("rows",), devices=devices)
        rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
        x = jax.ShapeDtypeStruct((6, 5), "float32", sharding=rows)
        total = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        return types.SimpleNamespace(
            jit=lambda: jax.jit(lambda x: x.sum(), out_shardings=total),
            args=(x,),
            mesh=mesh,
            flops=lambda: 30,
        )

    program = compiled(build, target=devices("CPU x 2"))
    assert (program.argument_bytes, program.flops) == (60, 30.0)
    [entry] = program.collectives["all-reduce"]
    assert (entry.axes, entry.bytes) == (("rows",), 4)


def test_an_error_of_build_is_raised_with_its_traceback():
    def build(devices):
        raise ValueError(f"no mesh of {len(devices)}")

    with pytest.raises(BuildError, match=r"must return a program for CPU x 3, got an error"):
        compiled(build, target=devices("CPU x 3"))


@pytest.mark.thorough
def test_what_is_no_program_is_refused():
    with pytest.raises(BuildError, match=r"an object with lower\(\), .* got int; return jax\.jit"):
        compiled(lambda devices: 3, target=devices("CPU"))


def test_what_cannot_be_pickled_is_refused_before_a_process_starts():
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"possible to pickle, got .*; make meshes"):
        compiled(lambda devices: lock, target=devices("CPU"))


@pytest.mark.capability("The compiler's refusal as a result")
def test_a_refusal_of_the_compiler_is_a_result():
    def build(devices):
        return jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((2,), "float32"))

    program = compiled(build, target=devices("CPU"), compiler_options={"xla_no_such_option": True})
    assert not program.fits
    assert "xla_no_such_option" in program.reason
    assert program.peak_bytes is None
    assert program.lower_s > 0
    assert "does not fit" in str(program).splitlines()[0]
    assert "xla_no_such_option" in str(program).splitlines()[1]


def test_an_abort_of_the_compiler_is_a_result_with_its_last_words():
    def build(devices):
        import types

        def end(compiler_options):
            os.write(2, b"Check failed: a kernel\n")
            os.abort()

        return types.SimpleNamespace(lower=lambda: types.SimpleNamespace(compile=end))

    program = compiled(build, target=devices("CPU"))
    assert not program.fits
    assert program.reason.startswith("the compiler ended by signal 6:")
    assert "Check failed: a kernel" in program.reason


@pytest.mark.thorough
def test_a_process_that_dies_before_it_compiles_is_told():
    with pytest.raises(BuildError, match="the process ended with exit code 7, without an answer"):
        compiled(lambda devices: os._exit(7), target=devices("CPU"))


def test_a_compilation_that_takes_too_long_is_killed(monkeypatch):
    started, popen = [], subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[-1]
    )
    with pytest.raises(TimeoutError, match=r"timeout_s=0.5, got .* in tracing; write timeout_s=1"):
        compiled(lambda devices: time.sleep(1000), target=devices("CPU"), timeout_s=0.5)
    [process] = started
    assert process.returncode == -9


CALLER = """
import sys
from dovetail_cluster import compiled, devices

file = sys.argv[1]

def build(devices):
    import os, time
    with open(file, "w") as opened:
        opened.write(str(os.getpid()))
    time.sleep(1000)

compiled(build, target=devices("CPU"))
"""


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_the_process_ends_with_its_caller(number, tmp_path):
    file = tmp_path / "pid"
    file.touch()
    caller = subprocess.Popen([sys.executable, "-c", CALLER, str(file)], stderr=subprocess.DEVNULL)
    with contextlib.ExitStack() as stack:
        stack.callback(caller.wait)
        stack.callback(caller.kill)
        _until(lambda: file.read_text())
        worker = int(file.read_text())
        caller.send_signal(number)
        caller.wait()
        _until(lambda: not _runs(worker))


def _until(condition, seconds=120.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, condition
        time.sleep(0.02)


def _runs(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.thorough
def test_progress_names_the_stage(monkeypatch):
    monkeypatch.setattr(sys.modules[_judged.__module__], "PROGRESS_S", 0.05)
    reports = []

    def build(devices):
        import time

        time.sleep(0.3)
        return jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((2,), "float32"))

    compiled(build, target=devices("CPU"), progress=lambda *report: reports.append(report))
    stages, seconds = zip(*reports, strict=True)
    assert stages[0] == "tracing"
    assert set(stages) <= {"tracing", "compilation"}
    assert list(seconds) == sorted(seconds)


def _sized(**sizes):
    known = dict.fromkeys(("argument_bytes", "output_bytes", "alias_bytes", "temp_bytes"), 0)
    return Compiled(target=devices("TPU v5e:4x4"), fits=True, **known | sizes)


def test_a_program_larger_than_the_memory_does_not_fit_though_it_compiles():
    """XLA:GPU refuses none."""
    memory = 16 * 2**30
    sizes = {"argument_bytes": memory // 2, "temp_bytes": memory // 2 - 100}
    assert _judged(_sized(**sizes, executable_bytes=100)).fits
    judged = _judged(_sized(**sizes, executable_bytes=2**28 + 100))
    assert (judged.fits, judged.reason) == (False, "it needs 16.25 GiB of 16 GiB of memory")
    assert judged.peak_bytes == memory - 100


def test_the_bound_is_the_longer_of_products_and_links():
    assert _sized().bound_s is None
    assert _sized(flops=16 * 197e12).bound_s == pytest.approx(1.0)

    def with_bytes(kind, link, size=800 * 10**9):
        entry = Traffic(count=1, bytes=size, axes=("x",), link=link, devices=4)
        return _sized(flops=16 * 197e12, collectives={kind: (entry,)}).bound_s

    # 200 GB/s; a device sends 3/4 of a gathered array, and twice that of a reduced one.
    assert with_bytes("all-gather", "ici") == pytest.approx(3.0)
    assert with_bytes("all-reduce", "ici") == pytest.approx(6.0)
    assert with_bytes("reduce-scatter", "ici") == pytest.approx(12.0)
    assert with_bytes("collective-permute", "ici") == pytest.approx(4.0)
    assert with_bytes("all-gather", "dcn") == pytest.approx(1.0)
    assert with_bytes("all-gather", "ici", size=1) == pytest.approx(1.0)


HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("libtpu", "jax_plugins"):
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Hidden())
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name, message",
    [
        ("TPU v5e:4x4", r"the compiler in libtpu, got none .* pip install 'dov.*\[tpu-plan\]'"),
        ("H200 x 8", r"xla_cuda13 or .*, got none of these; type pip install 'jax\[cuda13\]'"),
    ],
)
def test_a_compiler_that_is_not_installed_is_named(name, message, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BuildError, match=message):
        compiled(lambda devices: None, target=devices(name))


@pytest.mark.tpu
@pytest.mark.capability("Compile for a mesh of devices that are absent", on="tpu")
def test_a_program_for_a_tpu_has_its_sizes_and_collectives():
    program = compiled(layers((8, 2), width=256, rows=64), target=devices("TPU v5e:4x4"))
    weights, x = 2 * 5 * 256 * 512 * 4 // 2, 64 * 256 * 4 // 8
    assert program.fits, program.reason
    assert program.argument_bytes == weights + x
    assert program.alias_bytes == weights
    [entry] = program.collectives["all-reduce"]
    # XLA:TPU sums in bfloat16 or float32, as the products are made.
    assert (entry.count, entry.axes, entry.link, entry.devices) == (5, ("tensor",), "ici", 2)
    assert entry.bytes in (5 * 8 * 256 * 2, 5 * 8 * 256 * 4)
    assert set(program.collectives) == {"all-reduce"}
    assert program.versions["libtpu"]


@pytest.mark.tpu
@pytest.mark.capability("Collectives with bytes, axes and the link that they cross", on="tpu")
def test_what_crosses_slices_is_told_from_what_does_not():
    def build(devices):
        import jax.numpy as jnp
        from jax.experimental import mesh_utils
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        array = mesh_utils.create_hybrid_device_mesh((1, 8), (2, 1), devices)
        mesh = Mesh(array, ("data", "tensor"))
        rows = NamedSharding(mesh, PartitionSpec("data", "tensor"))
        x = jax.ShapeDtypeStruct((256, 1024), jnp.float32, sharding=rows)
        whole = NamedSharding(mesh, PartitionSpec())
        sums = jax.jit(lambda x: (x.sum(0), x.sum(1)), out_shardings=whole)
        return sums.lower(x)

    program = compiled(build, target=devices("TPU v5e:2x4", slices=2))
    assert program.fits, program.reason
    assert program.mesh == {"data": 2, "tensor": 8}
    links = {(t.axes, t.link) for entries in program.collectives.values() for t in entries}
    assert links == {(("data",), "dcn"), (("tensor",), "ici")}


@pytest.mark.tpu
@pytest.mark.capability("The compiler's refusal as a result", on="tpu")
def test_what_a_tpu_cannot_hold_is_refused_by_its_compiler():
    program = compiled(
        layers((16, 1), width=32768, rows=16, count=2), target=devices("TPU v5e:4x4")
    )
    assert not program.fits
    assert "RESOURCE_EXHAUSTED" in program.reason
    assert "15.75G" in program.reason


@pytest.mark.tpu
def test_sizes_that_the_compiler_does_not_know_are_refused():
    unknown = dataclasses.replace(devices("TPU v5e:4x4"), chips=(3, 3))
    with pytest.raises(BuildError, match=r"know the sizes of the target, got TPU v5e:3x3 and"):
        compiled(lambda devices: None, target=unknown)


@pytest.mark.tpu
@pytest.mark.parametrize("name, count", [("v4:2x2x1", 4), ("v5p:2x2x2", 8), ("v6e:2x4", 8)])
def test_a_target_has_as_many_devices_as_it_says(name, count):
    def build(devices):
        assert len(devices) == count
        return jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((2,), "float32"))

    target = devices(name)
    assert target.count == count
    compiled(build, target=target)

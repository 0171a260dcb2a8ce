# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The accelerator session: its order, limits, counts and state; and its real steps on this CPU."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import workspace

DECLARED = """
from accelerator_step import Step


def step(name, order, run=None, **options):
    return Step(name=name, run=f"toy:{run or name}", order=order, **{"limit_s": 60} | options)


STEPS = (
    step("last", 9),
    step("good", 1, full={"size": 1000}, tiny={"size": 2}),
    step("bad", 2),
    step("lacking", 3),
    step("slow", 4, limit_s=8),  # long enough for the start of a process on a busy machine
    step("patient", 5, limit_s=120),
    step("left", 6, "meet", full={"own": "left", "other": "right"}, timed=False),
    step("right", 7, "meet", full={"own": "right", "other": "left"}, timed=False),
)
"""
TOY = """
import json, os, threading, time
from pathlib import Path

HERE = Path(__file__).parent


def wait_for(name):
    while not (HERE / name).exists():
        time.sleep(0.01)


def good(size):
    print("a library prints this")
    print(json.dumps({"case": "good", "size": size, "passed": 3, "failed": 1}))


def bad():
    print(json.dumps({"case": "bad"}))
    raise ZeroDivisionError("as bad does")


def lacking():
    import no_such_module.part


def slow():
    threading.Event().wait()


def patient():
    (HERE / "pid").write_text(str(os.getpid()))
    (HERE / "begun").touch()
    wait_for("go")


def meet(own, other):  # hangs if one runs after the other
    (HERE / own).touch()
    wait_for(other)
    print(json.dumps({"case": own, "memory": os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"]}))


def last():
    print(json.dumps({"case": "last"}))
"""
JAX = """
from types import SimpleNamespace
def devices():
    return [SimpleNamespace(platform={platform!r}, device_kind={kind!r})]
"""


class Toy:
    """A copy of the scripts beside one package with the steps above, and a stand-in for jax."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "packages" / "toy" / "benchmarks"
        self.folder.mkdir(parents=True)
        (self.folder / "accelerator.py").write_text(DECLARED)
        (self.folder / "toy.py").write_text(TOY)
        self.jax = root / "installed" / "jax.py"
        self.jax.parent.mkdir()
        self.device("gpu", "NVIDIA H100 80GB HBM3")

    def device(self, platform: str, kind: str) -> None:
        self.jax.write_text(JAX.format(platform=platform, kind=kind))

    def begin(self, *arguments: str) -> "subprocess.Popen[str]":
        path = {"PYTHON": sys.executable, "PYTHONPATH": str(self.jax.parent)}
        return subprocess.Popen(
            [self.root / "scripts" / "accelerator", *arguments],
            env={**os.environ, **path, "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
        """(exit code, the lines of standard output, standard error)"""
        process = self.begin(*arguments)
        out, err = process.communicate()
        return process.returncode, [json.loads(line) for line in out.splitlines()], err


@pytest.fixture
def toy(frame: Path) -> Toy:
    return Toy(frame)


def test_listing_shows_the_order_and_runs_nothing(toy: Toy):
    out, _ = toy.begin("--list").communicate()
    order = ("left", "right", "good", "bad", "lacking", "slow", "patient", "last")
    assert [line.split()[0] for line in out.splitlines()] == [f"toy.{name}" for name in order]


def test_what_fails_lacks_something_or_hangs_does_not_stop_the_others(toy: Toy):
    names = [f"toy.{name}" for name in ("good", "bad", "lacking", "slow", "last")]
    state = ["--state", str(toy.root / "state.json")]
    code, lines, err = toy.run(*state, *names)
    assert code == 1
    assert lines[:-1] == [
        {"case": "good", "size": 1000, "passed": 3, "failed": 1},
        {"case": "bad"},
        {"case": "last"},
    ]
    counts = {"steps": 5, "done": 2, "failed": 1, "timed out": 1, "left": 0}
    device = {"platform": "gpu", "device": "NVIDIA H100 80GB HBM3", "tiny": False}
    assert lines[-1] == {**counts, "skipped": {"toy.lacking": "no-such-module"}, **device}
    assert "a library prints this" in err
    assert "ZeroDivisionError: as bad does" in err
    assert "in slow" in err  # the traceback of the hung step
    good = json.loads(Path(state[1]).read_text())["steps"]["toy.good"]
    assert (good["outcome"], good["passed"], good["failed"]) == ("done", 3, 1)
    # Again: nothing is left to do, and the counts are the same.
    assert toy.run(*state, *names)[:2] == (1, [lines[-1]])


def test_steps_without_times_run_together_before_the_others(toy: Toy):
    code, lines, err = toy.run("--together", "2", "toy.good", "toy.right", "toy.left")
    assert code == 0, err
    first = {(line["case"], line["memory"]) for line in lines[:2]}
    assert first == {("left", "false"), ("right", "false")}
    assert (lines[2]["case"], lines[3]["done"]) == ("good", 3)


@pytest.mark.thorough("it waits for ten seconds")
@pytest.mark.parametrize("limit_s", [None, 10])
def test_a_session_that_ends_stops_its_step_and_the_next_takes_it_up(toy: Toy, limit_s: int | None):
    line = ["--state", str(toy.root / "state.json"), "toy.good", "toy.patient", "toy.last"]
    process = toy.begin(*line, *(["--limit-s", str(limit_s)] if limit_s else []))
    if limit_s is None:
        while not (toy.folder / "begun").exists():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
    try:
        out, _ = process.communicate(timeout=90)  # a stopped session does not wait for its step
    finally:
        process.kill()
    last = json.loads(out.splitlines()[-1])
    assert (process.returncode, last["done"], last["left"]) == (0 if limit_s else 130, 1, 2)
    with pytest.raises(ProcessLookupError):
        os.kill(int((toy.folder / "pid").read_text()), 0)
    (toy.folder / "go").touch()
    code, lines, err = toy.run(*line)
    assert (code, lines[-1]["done"], lines[-1]["left"]) == (0, 3, 0)
    assert "toy.good" not in err  # it was done


def test_shapes_are_tiny_on_a_cpu(toy: Toy):
    toy.device("cpu", "cpu")
    _, lines, _ = toy.run("toy.good")
    assert (lines[0]["size"], lines[-1]["tiny"], lines[-1]["platform"]) == (2, True, "cpu")


OTHER = {"platform": "gpu", "device": "NVIDIA H200", "tiny": False, "steps": {}}


@pytest.mark.parametrize("text", ["{", json.dumps(OTHER)])
def test_a_state_that_is_damaged_or_of_another_device_is_refused(toy: Toy, text: str):
    state = toy.root / "state.json"
    state.write_text(text)
    code, lines, err = toy.run("--state", str(state), "toy.good")
    assert (code, lines, state.read_text()) == (2, [], text)
    assert f"got {state}" in err


def test_a_wrong_name_and_a_python_without_jax_are_refused(toy: Toy):
    code, lines, err = toy.run("toy.goood")
    assert (code, lines) == (2, [])
    assert "got toy.goood" in err
    toy.jax.write_text("raise ModuleNotFoundError('no jax here')")
    code, lines, err = toy.run("toy.good")
    assert (code, lines) == (2, [])
    assert "Set PYTHON" in err


def session(*arguments: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The figures and the last line of real steps that all end well."""
    done = subprocess.run(
        [workspace.ROOT / "scripts" / "accelerator", "--tiny", *arguments],
        env={**os.environ, "PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *figures, last = (json.loads(line) for line in done.stdout.splitlines())
    return figures, last


@pytest.mark.thorough
def test_real_steps_run_on_this_cpu():
    (suite, digest), last = session("checkpoint.digest", "kernels.conformance-routing")
    assert (suite["passed"], suite["failed"], suite["refused"]) == (2, 0, 0)
    assert digest["command"] == "scripts/accelerator checkpoint.digest --tiny"
    assert (last["done"], last["left"], last["tiny"]) == (2, 0, True)


@pytest.mark.slow
def test_all_steps_run_on_this_cpu():
    _, last = session("--limit-s", "3000")
    assert last["done"] == last["steps"] - len(last["skipped"])

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

TOY = """
import json, os, threading, time
from pathlib import Path
from accelerator_step import Step

HERE = Path(__file__).parent


def step(name, order, limit_s=60, **options):
    return Step(name=name, run=f"accelerator:{name}", order=order, limit_s=limit_s, **options)


STEPS = (
    step("last", 9),
    step("good", 1, full={"size": 1000}, tiny={"size": 2}),
    step("bad", 2),
    step("lacking", 3, needs=("no_such_module",)),
    # Long enough for the starts of a few processes on a busy machine.
    step("slow", 4, limit_s=10),
    step("patient", 5, limit_s=20),
    step("long", 6, limit_s=2000),
    step("left", 7, timed=False, limit_s=1000),
    step("right", 8, timed=False, limit_s=1000),
)


def good(size):
    print("a library prints this")
    print(json.dumps({"case": "good", "size": size, "passed": 3, "failed": 1}))


def bad():
    print(json.dumps({"case": "bad"}))
    raise ZeroDivisionError("as bad does")


def patient():
    print(json.dumps({"pid": os.getpid()}), flush=True)
    if not (HERE / "go").exists():
        threading.Event().wait()


def slow():
    threading.Event().wait()


# Returns once both run, so it hangs if they run one after the other.
def meet(own, other):
    (HERE / own).touch()
    while not (HERE / other).exists():
        time.sleep(0.01)
    print(json.dumps({"case": own, "memory": os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"]}))


def left():
    meet("left", "right")


def right():
    meet("right", "left")


def last():
    print(json.dumps({"case": "last"}))


long = last
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
        self.file = root / "packages" / "toy" / "benchmarks" / "accelerator.py"
        self.file.parent.mkdir(parents=True)
        self.file.write_text(TOY)
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
    names = [line.split()[0] for line in out.splitlines()]
    order = ("left", "right", "good", "bad", "lacking", "slow", "patient", "long", "last")
    assert names == [f"toy.{name}" for name in order]


def test_what_fails_lacks_something_or_hangs_does_not_stop_the_others(toy: Toy, tmp_path: Path):
    names = [f"toy.{name}" for name in ("good", "bad", "lacking", "slow", "last")]
    state = ["--state", str(tmp_path / "state.json")]
    code, lines, err = toy.run(*state, *names)
    assert code == 1
    assert lines[:-1] == [
        {"case": "good", "size": 1000, "passed": 3, "failed": 1},
        {"case": "bad"},
        {"case": "last"},
    ]
    expected = {
        "steps": 5,
        "done": 2,
        "failed": 1,
        "timed_out": 1,
        "skipped": {"no-such-module": 1},
        "left": 0,
        "figures": 3,
        "conformance": {"passed": 3, "failed": 1},
        "platform": "gpu",
        "device": "NVIDIA H100 80GB HBM3",
        "tiny": False,
    }
    assert lines[-1] == expected
    assert "a library prints this" in err
    assert "ZeroDivisionError: as bad does" in err
    assert "toy.lacking: skipped, no-such-module is not installed" in err
    assert "in slow" in err  # the traceback of the hung step
    # Again: nothing is left to do, and the counts are the same.
    assert toy.run(*state, *names)[:2] == (1, [expected])


def test_steps_without_times_run_together_before_the_others(toy: Toy):
    code, lines, err = toy.run("--together", "2", "toy.good", "toy.right", "toy.left")
    assert code == 0, err
    first = {(line["case"], line["memory"]) for line in lines[:2]}
    assert first == {("left", "false"), ("right", "false")}
    assert (lines[2]["case"], lines[3]["done"]) == ("good", 3)


def test_an_interrupted_session_stops_all_that_run_together(toy: Toy):
    process = toy.begin("--together", "2", "toy.left", "toy.good")
    while not (toy.file.parent / "left").exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    try:
        out, _ = process.communicate(timeout=90)  # against a hang: the step has 1000 s
    finally:
        process.kill()
    assert (process.returncode, json.loads(out)["left"]) == (130, 2)


def test_a_step_that_the_end_of_the_session_stops_is_taken_up_again(toy: Toy, tmp_path: Path):
    state = ["--state", str(tmp_path / "state.json")]
    names = ["toy.good", "toy.patient", "toy.long"]
    code, lines, err = toy.run(*state, "--limit-s", "20", *names)
    counts = {key: lines[-1][key] for key in ("done", "failed", "timed_out", "left")}
    assert (code, counts) == (0, {"done": 1, "failed": 0, "timed_out": 0, "left": 2})
    assert "toy.patient: stopped at the end of the session" in err
    assert_gone(lines[1]["pid"])
    (toy.file.parent / "go").touch()
    code, lines, err = toy.run(*state, *names)
    assert (code, lines[-1]["done"], lines[-1]["left"]) == (0, 2, 1)
    assert "toy.good" not in err  # it was done
    assert "toy.long" not in err  # half of its limit was not left
    code, lines, _ = toy.run(*state, *names)  # and as the first of a session it starts
    assert (code, lines[-1]["done"], lines[-1]["left"]) == (0, 3, 0)


def assert_gone(pid: int) -> None:
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_interrupted_session_stops_its_step_and_still_counts(toy: Toy):
    process = toy.begin("toy.good", "toy.patient")
    assert process.stdout is not None
    pid = [json.loads(process.stdout.readline()) for _ in range(2)][1]["pid"]
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    assert process.returncode == 130
    last = json.loads(out)
    assert (last["done"], last["left"]) == (1, 1)
    assert_gone(pid)


def test_shapes_are_tiny_on_a_cpu_and_where_asked_for(toy: Toy):
    assert toy.run("--tiny", "toy.good")[1][0]["size"] == 2
    toy.device("cpu", "cpu")
    _, lines, _ = toy.run("toy.good")
    assert (lines[0]["size"], lines[-1]["tiny"], lines[-1]["platform"]) == (2, True, "cpu")


ELSEWHERE = {"platform": "gpu", "device": "NVIDIA H200", "tiny": False, "steps": {}}


@pytest.mark.parametrize("text", ["{", "[]", "{}", json.dumps(ELSEWHERE)])
def test_a_state_that_is_damaged_or_of_another_device_is_refused(toy: Toy, text: str):
    state = toy.root / "state.json"
    state.write_text(text)
    code, lines, err = toy.run("--state", str(state), "toy.good")
    assert (code, lines, state.read_text()) == (2, [], text)
    assert f"got {state}" in err
    assert "Name another" in err


def test_what_would_end_the_session_late_is_refused_before_any_step(toy: Toy, tmp_path: Path):
    code, lines, err = toy.run("--state", str(tmp_path / "none" / "state"), "toy.good")
    assert (code, lines) == (2, [])
    assert "No such file" in err
    code, lines, err = toy.run("toy.goood")
    assert (code, lines) == (2, [])
    assert "got toy.goood" in err
    toy.jax.write_text("raise ModuleNotFoundError('no jax here')")
    code, lines, err = toy.run("toy.good")
    assert (code, lines) == (2, [])
    assert "no jax here" in err
    assert "Set PYTHON" in err


def session(*arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    done = subprocess.run(
        [workspace.ROOT / "scripts" / "accelerator", "--tiny", *arguments],
        env={**os.environ, "PYTHON": sys.executable, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.thorough
def test_real_steps_run_on_this_cpu():
    code, lines, err = session("checkpoint.digest", "kernels.conformance-routing")
    assert code == 0, err
    suite, digest, last = lines
    assert suite["case"] == "conformance of routing"
    assert (suite["passed"], suite["failed"], suite["refused"]) == (2, 0, 0)
    assert digest["bytes_per_s"] > 0
    assert digest["command"] == "scripts/accelerator checkpoint.digest --tiny"
    assert (last["done"], last["left"], last["tiny"]) == (2, 0, True)


@pytest.mark.slow
def test_all_steps_run_on_this_cpu():
    code, lines, err = session("--limit-s", "3000")
    last = lines[-1]
    assert code == 0, err
    assert last["done"] == last["steps"] - sum(last["skipped"].values())
    assert last["conformance"]["passed"] > 0

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
    step("early", 6, "last", timed=False),
)
"""
TWO = ["checkpoint.digest", "kernels.conformance-routing"]
H100 = "NVIDIA H100 80GB HBM3"
TOY = """
import json, os, threading, time
from pathlib import Path
HERE = Path(__file__).parent
slow = lambda: threading.Event().wait()
last = lambda: print(json.dumps({"case": "last"}))
def good(size):
    print("a library prints this")
    print(json.dumps({"case": "good", "size": size, "passed": 3, "failed": 1}))
def bad():
    print(json.dumps({"case": "bad"}))
    raise ZeroDivisionError("as bad does")
def lacking():
    import no_such_module.part
def patient():
    (HERE / "pid").write_text(str(os.getpid()))
    (HERE / "begun").touch()
    while not (HERE / "go").exists():
        time.sleep(0.01)
"""


def begin(root: Path, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
    own = os.environ | {"PYTHON": sys.executable, **variables}
    line, pipe = [root / "scripts/accelerator", *arguments], subprocess.PIPE
    return subprocess.Popen(line, env=own, stdout=pipe, stderr=pipe, text=True)


class Toy:
    """A copy of the scripts beside one package with the steps above, and a stand-in for jax."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "packages" / "toy" / "benchmarks"
        device = f"platform='gpu', device_kind={H100!r}"
        jax = f"from types import SimpleNamespace as N\ndevices = lambda: [N({device})]\n"
        (self.folder / "installed").mkdir(parents=True)
        texts = {"accelerator.py": DECLARED, "toy.py": TOY, "installed/jax.py": jax}
        for name, text in texts.items():
            (self.folder / name).write_text(text)

    def begin(self, *arguments: str) -> "subprocess.Popen[str]":
        return begin(self.root, *arguments, PYTHONPATH=str(self.folder / "installed"))

    def run(self, *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
        """(exit code, the lines of standard output, standard error)"""
        process = self.begin(*arguments)
        out, err = process.communicate()
        return process.returncode, [json.loads(line) for line in out.splitlines()], err


@pytest.fixture
def toy(frame: Path) -> Toy:
    return Toy(frame)


def test_steps_without_times_are_first_and_wrong_names_and_states_are_refused(toy: Toy):
    out, _ = toy.begin("--list").communicate()
    order = ("early", "good", "bad", "lacking", "slow", "patient", "last")
    assert [line.split()[0] for line in out.splitlines()] == [f"toy.{name}" for name in order]
    state = toy.root / "state.json"
    for text in ("{", '{"platform": "gpu", "device": "NVIDIA H200", "tiny": false}'):
        state.write_text(text)  # damaged, or of another device
        code, lines, err = toy.run("--state", str(state), "toy.good")
        assert (code, lines, state.read_text()) == (2, [], text)
        assert f"got {state}" in err
    code, lines, err = toy.run("toy.goood")
    assert (code, lines) == (2, [])
    assert "got toy.goood" in err


def test_what_fails_lacks_something_or_hangs_does_not_stop_the_others(toy: Toy):
    names = [f"toy.{name}" for name in ("good", "bad", "lacking", "slow", "last")]
    state = ["--state", str(toy.root / "state.json")]
    code, (*figures, last), err = toy.run(*state, *names)
    good = {"case": "good", "size": 1000, "passed": 3, "failed": 1}
    assert (code, figures) == (1, [good, {"case": "bad"}, {"case": "last"}])
    counts = {"steps": 5, "done": 2, "failed": 1, "timed out": 1, "left": 0}
    named = {"platform": "gpu", "device": H100, "tiny": False}
    assert last == {**counts, **named, "skipped": {"toy.lacking": "no-such-module"}}
    # The last is the traceback of the hung step.
    for text in ("a library prints this", "ZeroDivisionError: as bad does", "in <lambda>"):
        assert text in err
    good = json.loads(Path(state[1]).read_text())["steps"]["toy.good"]
    assert (good["outcome"], good["passed"], good["failed"]) == ("done", 3, 1)
    # Again: nothing is left to do, and the counts are the same.
    assert toy.run(*state, *names)[:2] == (1, [last])


@pytest.mark.thorough("it waits for ten seconds")
@pytest.mark.parametrize("limit_s", [None, 10])
def test_a_session_that_ends_stops_its_step_and_the_next_takes_it_up(toy: Toy, limit_s: int | None):
    line = ["--state", str(toy.root / "state.json"), "toy.good", "toy.patient", "toy.last"]
    process = toy.begin(*line, *(["--limit-s", str(limit_s)] if limit_s else []))
    while not limit_s and not (toy.folder / "begun").exists():
        assert process.poll() is None
    if not limit_s:
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


@pytest.mark.thorough
@pytest.mark.parametrize("line", [TWO, pytest.param(["--limit-s=3000"], marks=pytest.mark.slow)])
def test_real_steps_run_on_this_cpu(line: list[str]):
    process = begin(workspace.ROOT, "--tiny", *line, JAX_PLATFORMS="cpu")
    out, err = process.communicate()
    assert process.returncode == 0, err
    *figures, last = map(json.loads, out.splitlines())
    assert (last["done"] + len(last["skipped"]), last["tiny"]) == (last["steps"], True)
    if line is TWO:
        suite, digest = figures
        assert (suite["passed"], suite["failed"], suite["refused"]) == (2, 0, 0)
        assert digest["command"] == "scripts/accelerator checkpoint.digest --tiny"

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""scripts/checks.py: the order of the checks, their failures, and an interrupt."""

import os
import re
import signal
import subprocess
import sys
import threading

import pytest

import checks
import workspace

pytestmark = pytest.mark.once

# Two checks that wait, and one that must never begin.
WAITING = """
import sys
import checks
write = "import os, time; open(os.environ['PIDS'], 'a').write('{}\\\\n')"
wait, late = write.format("begun") + "; time.sleep(600)", write.format("late")
lines = {name: ["timeit", "-n", "1", "-r", "1", wait] for name in "ab"}
checks.commands = lambda sessions: lines | {"c": ["timeit", "-n", "1", "-r", "1", late]}
sys.exit(checks.main())
"""


def test_all_suites_the_longest_first():
    names = list(checks.commands([]))
    assert names[:2] == ["ruff check", "ruff format"]
    folders = {f"packages/{folder}/tests" for folder in workspace.members()}
    assert set(names[2:]) == folders | {"integration_tests"}
    warm = [checks.suite_times.budgets()[name]["warm"] for name in names[2:]]
    assert warm == sorted(warm, reverse=True)


def test_a_session_of_packages_is_one_check_for_each():
    names = list(checks.commands(["docs", "tests-3.12", "bare-3.11(data)"]))
    assert (names[0], names[-1]) == ("docs", "bare-3.11(data)")
    assert set(names[1:-1]) == {f"tests-3.12({folder})" for folder in workspace.members()}
    assert checks.commands(["docs"])["docs"] == ["nox", "--session", "docs"]


def test_the_closing_line_is_that_of_pytest_with_what_the_cache_could_not_do():
    output = "...\ncompilation cache: off\n3 passed in 2.10s\nnox > Session x was successful\n"
    assert checks.closing(output) == "3 passed in 2.10s\n    compilation cache: off"
    assert checks.closing("") == "passed"


def test_a_failure_is_shown_whole_and_the_rest_goes_on(capsys):
    lines = {"bad": ["this_module_is_not_there"], "good": ["timeit", "-n", "1", "-r", "1", "1"]}
    assert checks.run_all(lines) == ["bad"]
    output = capsys.readouterr().out
    assert re.search(r"bad \(\d+ s, \d+ CPU s\): FAILED\n", output)
    assert "No module named this_module_is_not_there" in output
    assert re.search(r"good \(\d+ s, \d+ CPU s\): 1 loop", output)


def test_what_a_check_starts_keeps_its_bytecode(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    line = ["timeit", "-n", "1", "-r", "1", "import sys; assert not sys.dont_write_bytecode"]
    passed, output, *_ = checks.run("bytecode", line)
    assert passed, output


def test_a_check_is_charged_for_its_children():
    spin = "import time\nwhile time.process_time() < 0.5: pass"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}])"
    line = ["timeit", "-n", "1", "-r", "1", child]
    passed, output, _, cpu_s = checks.run("children", line)
    assert passed, output
    assert cpu_s >= 0.5


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_what_runs_and_begins_nothing(sent, tmp_path):
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING],
        env={**os.environ, "PYTHONPATH": str(workspace.ROOT / "scripts"), "PIDS": str(pids)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    timer = threading.Timer(120, process.kill)  # only a hang gets there
    timer.start()
    with pids.open() as pipe:
        waiting = []
        while len(waiting) < 2:  # until both have begun
            waiting += pipe.readline().split()
        process.send_signal(sent)
        _, errors = process.communicate()
        assert process.returncode == 130, errors
        assert "interrupted; the same command begins anew" in errors
        assert "late" not in pipe.read()  # at its end, since both writers are gone
    timer.cancel()

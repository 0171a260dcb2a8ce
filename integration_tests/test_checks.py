# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""scripts/checks.py: the jobs and their order, their failures, and an interrupt."""

import os
import re
import signal
import subprocess
import sys
import threading

import pytest

import changed
import checks
import passed
import reach
import workspace

pytestmark = pytest.mark.once

TIMEIT = ["timeit", "-n", "1", "-r", "1"]
JOBS = f"""
import sys, types
import changed, checks
job = lambda name, text: checks.Job(name=name, line=[*{TIMEIT}, text], checks=[name])
"""
# Three checks that wait, and a fourth that must never begin.
WAITING = """
write = "import os, time; open(os.environ['PIDS'], 'a').write('{}\\\\n')"
wait, late = write.format("begun") + "; time.sleep(600)", write.format("late")
deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + wait
checks.GRACE_S = 1.0
jobs = {"a": wait, "b": deaf, "c": deaf, "d": late}
checks.of_a_person = lambda whole: [job(name, text) for name, text in jobs.items()]
sys.exit(checks.main())
"""
# `.ci/run` of two checks. The second names its process and waits, or ends, as the argument says.
LANDING = """
changed.keys = lambda tree: {"a": "key", "b": "key"}
changed.checks = lambda tree: [types.SimpleNamespace(name=name) for name in "ab"]
wait = "import os, time; print(os.getpid(), file=open('pid', 'w'), flush=True); time.sleep(600)"
text = {"a": "1", "b": wait if sys.argv.pop() == "wait" else "1"}
checks.of_checks = lambda every, costs: [job(check.name, text[check.name]) for check in every]
checks.of_a_person, checks.ALWAYS = lambda: [], ()
sys.exit(checks.main())
"""


def test_a_person_runs_lint_and_the_fast_tier_of_all_suites_the_longest_first():
    lint, style, *suites = checks.of_a_person()
    assert [lint.name, style.name] == ["ruff check", "ruff format"]
    folders = {f"packages/{folder}/tests" for folder in workspace.members()} | {"integration_tests"}
    assert {job.line[-1] for job in suites} == folders
    waiting, others = suites[:2], suites[2:]
    assert {job.line[-1] for job in waiting} == set(checks.WAITING)
    warm = [checks.suite_times.budgets()[job.line[-1]]["warm"] for job in others]
    assert warm == sorted(warm, reverse=True)
    assert all("--tier fast" in " ".join(job.line) for job in suites)
    assert not any("--tier" in job.line for job in checks.of_a_person(whole=True))


def test_checks_that_share_an_environment_share_a_process():
    names = ["thorough-3.11(data)", "tests-3.12(data)", "parity(data)", "parity(models)", "docs"]
    names += [f"integration-{p}(test_{f}.py)" for p in ("3.11", "3.12") for f in "ab"]
    names += ["doctests-3.12(data)", "doctests-3.12(models)"]
    options = {"paths": frozenset(), "folders": frozenset(), "python": "3.11"}
    costs = {"integration-3.11(test_a.py)": 90.0, "docs": 300.0}
    jobs = checks.of_checks([changed.Check(name=n, **options) for n in names], costs)
    assert sorted(check for job in jobs for check in job.checks) == sorted(names)
    lines = {job.name: " ".join(job.line) for job in jobs}
    both = "integration_tests/test_a.py integration_tests/test_b.py"
    doctests = "integration_tests/test_doctests.py --doctests=data --doctests=models"
    for name, end in {
        "thorough-3.11(data)": "--tier thorough packages/data/tests",
        "tests-3.12(data)": "nox --session tests-3.12(data) -- --tier sample",
        "parity": "nox --session parity -- data models",
        "docs": "nox --session docs",
        "integration-3.11 1": "integration_tests/test_b.py",  # of unknown cost: the dearer one
        "integration-3.11 2": "integration_tests/test_a.py",
        "integration-3.12": f"{both} {doctests}",
    }.items():
        assert lines[name].endswith(end), name
    assert "--tier fast" in lines["integration-3.12"]
    costs = [job.cost_s for job in jobs]
    assert costs == sorted(costs, reverse=True)


def test_the_outcomes_of_files_count_also_in_a_job_that_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(workspace, "ROOT", tmp_path)
    ended = {"passed": False, "output": "", "wall_s": 9.0, "cpu_s": 9.0}
    names = [f"integration-3.11({name}.py)" for name in ("a", "b", "c")]
    job = checks.Job(name="integration-3.11 1", line=["--outcomes"], checks=names)
    result = checks.Result(job=job, **ended)
    assert checks.outcomes(result) == {}  # it was killed
    (tmp_path / "build/outcomes").mkdir(parents=True)
    text = '{"a.py": {"passed": true, "cpu_s": 2.5}, "b.py": {"passed": false, "cpu_s": 1}}'
    (tmp_path / job.outcomes_file).write_text(text)
    assert checks.outcomes(result) == {"integration-3.11(a.py)": 2.5}
    job = checks.Job(name="docs", line=[], checks=["docs"])
    for passes, costs in {False: {}, True: {"docs": 9.0}}.items():
        result = checks.Result(job=job, **ended | {"passed": passes})
        assert checks.outcomes(result) == costs


def test_a_failure_is_shown_whole_and_the_rest_goes_on_and_children_count(capsys, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")  # the children keep their bytecode
    spin = "import time\nwhile time.process_time() < 0.5: pass"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}]); "
    good = [*TIMEIT, f"{child}assert not sys.dont_write_bytecode"]
    lines, ended = {"bad": ["this_module_is_not_there"], "good": good}, {}
    jobs = [checks.Job(name=name, line=line) for name, line in lines.items()]
    assert checks.run_all(jobs, lambda result: ended.update({result.job.name: result})) == ["bad"]
    output = capsys.readouterr().out
    assert re.search(r"bad \(\d+ s, \d+ CPU s\): FAILED\n", output)
    assert "No module named this_module_is_not_there" in output
    assert re.search(r"good \(\d+ s, \d+ CPU s\): 1 loop", output)
    assert ended["good"].cpu_s >= 0.5


def begin(program, root, *arguments, **variables) -> "subprocess.Popen[str]":
    own = {"PYTHONPATH": str(root / "scripts"), **variables}
    line, pipe = [sys.executable, "-c", JOBS + program, *arguments], subprocess.PIPE
    return subprocess.Popen(line, env=os.environ | own, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_what_runs_and_begins_nothing(sent, tmp_path):
    pids = tmp_path / "pids"
    os.mkfifo(pids)
    process = begin(WAITING, workspace.ROOT, PIDS=str(pids))
    timer = threading.Timer(120, process.kill)  # only a hang gets there
    timer.start()
    with pids.open() as pipe:
        waiting = []
        while len(waiting) < 3:  # until all have begun
            waiting += pipe.readline().split()
        process.send_signal(sent)
        _, errors = process.communicate()
        assert process.returncode == 130, errors
        assert "interrupted; the same command begins anew" in errors
        assert "late" not in pipe.read()  # at its end, since all writers are gone
    timer.cancel()


def test_a_killed_run_leaves_what_ended_and_the_next_one_waits_for_what_still_runs(repository):
    os.mkfifo(repository / "pid")

    def recorded() -> list[str]:
        return [record.check for record in passed.read(repository / reach.RECORD)]

    (repository / ".ci").mkdir()
    first = begin(LANDING, repository, "--landing", "wait")
    pid = int((repository / "pid").read_text())
    while not next(first.stdout).startswith("a ("):
        pass
    first.kill()
    first.communicate()
    assert recorded() == ["a"]
    second = begin(LANDING, repository, "--landing", "end")
    assert next(second.stdout).startswith("waits for the jobs of another .ci/run")
    os.kill(pid, signal.SIGKILL)
    output, _ = second.communicate()
    assert second.returncode == 0, output
    assert "leaves out: 1 checks" in output
    assert recorded() == ["a", "b", passed.WHOLE]

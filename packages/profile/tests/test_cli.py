# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command: each action, its forms, its exit codes, and scripts that run under it unchanged."""

import csv
import functools
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail_profile.command import cli
from dovetail_profile.command.script import at_first_trace
from dovetail_profile.profile import read

FIXTURES = Path(__file__).parent / "fixtures"
TRACE, OTHER = FIXTURES / "jax-0.12.0.1.xplane.pb", FIXTURES / "jax-0.10.2.xplane.pb"
Command = Callable[..., tuple[int, str, str]]


kept = functools.cache(read)


@pytest.fixture
def reads_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of one trace share its tables: under run-time types a reading takes half a second."""
    monkeypatch.setattr(cli, "read", lambda path: kept(Path(path)))


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """command(*argv): the exit code, and the texts on standard output and error."""

    def call(*argv: Any) -> tuple[int, str, str]:
        try:
            code = cli.main(list(map(str, argv)))
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        return (code, *capsys.readouterr())

    return call


def test_ops_in_each_form(command: Command, reads_once: None) -> None:
    table = kept(TRACE).ops(by="scope")
    code, text, errors = command("ops", TRACE, "--by", "scope", "--top", 3)
    assert (code, errors) == (0, "")
    assert text.rstrip("\n") == str(table.top(3))
    content = json.loads(command("ops", TRACE, "--by", "scope", "--top", 0, "--json")[1])
    assert content["rows"] == json.loads(table.to_json())
    rows = list(csv.DictReader(command("ops", TRACE, "--by", "scope", "--csv")[1].splitlines()))
    assert [row["name"] for row in rows] == table.top(20).column("name")


def test_steps(command: Command, reads_once: None) -> None:
    content = json.loads(command("steps", TRACE, "--json")[1])
    assert [row["step"] for row in content["rows"]] == [0, 1, 2, 3]


def test_memory_of_a_program(command: Command, reads_once: None) -> None:
    memory = kept(TRACE).memory("jit_tail")
    content = json.loads(command("memory", TRACE, "jit_tail", "--json")[1])
    assert content["peak_bytes"] == memory.peak_bytes
    assert sum(row["bytes"] for row in content["rows"]) == memory.peak_bytes


def test_memory_of_an_unknown_program_names_a_near_one(command: Command, reads_once: None) -> None:
    code, _, errors = command("memory", TRACE, "jit_tial")
    assert code == 2
    assert "jit_tail" in errors


def test_a_difference_fails_if_the_second_is_slower(command: Command, reads_once: None) -> None:
    code, text, _ = command("diff", TRACE, OTHER, "--json", "--top", 0)
    content = json.loads(text)
    before, after = content["before_us"], content["after_us"]
    assert code == 0
    assert sum(row["delta_us"] for row in content["rows"]) == pytest.approx(after - before)
    slow, fast = (TRACE, OTHER) if before > after else (OTHER, TRACE)
    percent = 100 * (max(before, after) / min(before, after) - 1)
    assert command("diff", fast, slow, "--fail-over", f"{percent - 0.1:.3f}%")[0] == 1
    assert command("diff", fast, slow, "--fail-over", f"{percent + 0.1:.3f}%")[0] == 0


def test_report_is_written(command: Command, reads_once: None, tmp_path: Path) -> None:
    out = tmp_path / "tables.json"
    assert json.loads(command("report", TRACE, "--out", out, "--json")[1]) == {"file": str(out)}
    assert json.loads(out.read_text())
    assert command("report", TRACE, "--out", tmp_path / "page.txt")[0] == 2


def test_peaks_are_printed_and_kept(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dovetail_profile import peaks

    known = peaks.Peaks(device_kind="k", flops_per_s={"float32": 2e9}, bytes_per_s=3e9)
    monkeypatch.setattr(peaks, "measure_peaks", lambda: known)  # which takes seconds
    content = json.loads(command("peaks", "--out", tmp_path / "peaks.json", "--json")[1])
    assert content["bytes_per_s"] == 3e9
    assert peaks.Peaks.load(tmp_path / "peaks.json", device_kind="k") == known


@pytest.mark.parametrize("content", ["empty", "text", "random", "truncated", "folder", "absent"])
def test_what_is_no_trace(command: Command, tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.xplane.pb"
    data = TRACE.read_bytes()
    contents = {
        "empty": b"",
        "text": b"print('hello')\n" * 100,
        "random": random.Random(0).randbytes(50_000),
        "truncated": data[: len(data) // 2],
    }
    if content in contents:
        path.write_bytes(contents[content])
    elif content == "folder":
        path.mkdir()
    code, text, errors = command("ops", path, "--json")
    assert code == (3 if content in contents else 2)
    assert json.loads(text)["exit_code"] == code
    assert errors.startswith("error: ")
    assert str(path) in errors


@pytest.mark.parametrize(
    "argv, text",
    [
        (["ops"], "required: PATH"),
        (["ops", "x", "--by", "line"], "--by must be one of op, source, scope, category"),
        (["ops", "x", "--top", "-1"], "--top: must be a number of rows, got -1"),
        (["diff", "a", "b", "--fail-over", "5"], "--fail-over: must be like 5%, got 5"),
        (["run", "--steps", "4:2", "x.py"], "--steps: must be like 10:15"),
        (["run"], "required: SCRIPT"),
        (["run", "absent.py"], "SCRIPT must be a file, got absent.py"),
    ],
)
def test_a_wrong_command_line(command: Command, argv: list[str], text: str) -> None:
    code, _, errors = command(*argv)
    assert code == 2
    assert text in errors


SCRIPT = """
import sys
import beside
import jax
x = jax.jit(lambda: jax.numpy.ones((9, 9)))()
for i in range(4):
    with jax.profiler.StepTraceAnnotation("train", step_num=i):
        jax.jit(lambda x: x @ x)(x).block_until_ready()
print(sys.argv[1:], __name__, beside.VALUE, sys.path[0])
exec(sys.argv[1])
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that computes, and then executes its first argument."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "beside.py").write_text("VALUE = 5")
    file = tmp_path / "folder" / "script.py"
    file.write_text(SCRIPT)
    return file


@pytest.mark.parametrize(
    "end, code, errors",
    [
        ("pass", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('a reason')", 1, "a reason\n"),
        ("raise KeyboardInterrupt", 130, "\ninterrupted\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
    ],
)
def test_a_script_is_itself(
    command: Command, script: Path, tmp_path: Path, end: str, code: int, errors: str
) -> None:
    argv, path = list(sys.argv), list(sys.path)
    out = tmp_path / "trace"
    answer = command("run", "--steps", "1:3", "--out", out, script, end, "--steps", "9")
    assert answer[0] == code
    assert answer[1] == f"{[end, '--steps', '9']} __main__ 5 {script.parent}\n"
    assert errors in answer[2]
    assert "command/script.py" not in answer[2]
    assert answer[2].endswith(f"trace: {out}\n")
    assert read(out).steps().column("step") == [0, 1, 2, 3]
    assert (sys.argv, sys.path) == (argv, path)


def test_a_module_is_itself(
    command: Command, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(script.parent)
    code, text, _ = command("run", "--out", tmp_path / "trace", "-m", "script", "pass", "-m")
    assert code == 0
    assert text == f"['pass', '-m'] __main__ 5 {script.parent}\n"
    assert len(read(tmp_path / "trace").ops())


def test_a_folder_with_a_trace_is_refused_before_the_script_runs(
    command: Command, script: Path, tmp_path: Path
) -> None:
    (tmp_path / "plugins/profile/run").mkdir(parents=True)
    code, text, errors = command("run", "--out", tmp_path, script, "pass")
    assert (code, text) == (2, "")
    assert f"--out must be a folder without a trace, got --out '{tmp_path}'" in errors


def test_a_script_that_traces_itself_goes_on(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    own = tmp_path / "own"
    file.write_text(
        f"import jax\nwith jax.profiler.trace({str(own)!r}):\n"
        "    jax.jit(lambda x: x * 23)(1.0).block_until_ready()\n"
    )
    code, _, errors = command("run", "--out", tmp_path / "trace", file)
    assert code == 0
    assert errors.startswith("no trace: a capture must be the only trace of its process")
    assert len(read(own).ops())


def test_a_script_without_a_computation_has_no_trace(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text("print('nothing')")
    code, text, errors = command("run", "--out", tmp_path / "trace", file)
    assert (code, text) == (0, "nothing\n")
    assert errors == "no trace: the script computed nothing with JAX\n"


def test_the_start_comes_once_and_before_the_first_trace() -> None:
    import jax

    events: list[str] = []
    with at_first_trace(lambda: events.append("start")):
        for _ in range(2):
            jax.jit(lambda x: events.append("traced") or x)(1.0)
    jax.jit(lambda x: x)(1.0)
    assert events == ["start", "traced", "traced"]


def test_a_module_that_is_absent_fails_as_in_python(command: Command, tmp_path: Path) -> None:
    code, _, errors = command("run", "--out", tmp_path / "trace", "-m", "absent_module")
    assert code == 1
    assert errors.startswith("ImportError: No module named absent_module\n")


@pytest.mark.thorough
def test_options_that_a_script_sets_for_jax_hold(tmp_path: Path) -> None:
    """In a process of its own: JAX is imported once."""
    file = tmp_path / "script.py"
    file.write_text(
        "import os, sys\n"
        "assert 'jax' not in sys.modules\n"
        "os.environ['JAX_NUM_CPU_DEVICES'] = '3'\n"
        "import jax\n"
        "jax.config.update('jax_enable_x64', True)\n"
        "print(jax.device_count(), jax.jit(lambda x: x * 2)(jax.numpy.ones(3)).dtype)\n"
    )
    command = [sys.executable, "-m", "dovetail_profile", "run", "--out", "trace", "script.py"]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "3 float64\n"), ended.stderr
    assert ended.stderr.endswith("trace: trace\n")
    assert len(read(tmp_path / "trace").ops())

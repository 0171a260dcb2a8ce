# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the command prints, and how it exits."""

import json
import subprocess
import sys

import pytest

from dovetail_runs import Run

EVIL = "a\x1b[2J\u202e\x07b"  # clears a terminal, turns the text around, rings


@pytest.fixture
def folder(tmp_path, written):
    losses = [{"step": i, "loss": 4.0 - i, "eval/loss": 3.0} for i in range(3)]
    written("a", losses, settings={"rate": 0.1, "steps": 5}, recipe="toy").tag("best")
    written("b", losses[:2], settings={"rate": 0.2, "steps": 5}, recipe="toy")
    return tmp_path


def test_list_prints_rows_or_an_object(folder, command):
    code, out, err = command("list", folder)
    assert (code, err) == (0, "")
    assert [line.split()[:4] for line in out.splitlines()[1:3]] == [
        *(["a", "toy", "new", "3/5"], ["b", "toy", "new", "2/5"])
    ]
    (folder / "b" / "run.json").write_text("{")
    (folder / "data").mkdir()
    code, out, err = command("list", folder, "--json")
    assert (code, err) == (0, "")
    content = json.loads(out)
    assert content.keys() == {"runs", "damaged", "foreign"}
    row = content["runs"]["a"]
    assert (row["step"], row["steps"], row["mean_loss"], row["tags"]) == (3, 5, 3.0, ["best"])
    assert row["evaluations"] == {"eval/loss": [2, 3.0]}
    assert (list(content["damaged"]), content["foreign"]) == (["b"], ["data"])


def test_list_takes_tags(folder, command):
    Run(folder / "a").tag("x")
    Run(folder / "b").tag("x")
    line = ("list", folder, "--json", "--tag")
    assert list(json.loads(command(*line, "x")[1])["runs"]) == ["a", "b"]
    assert list(json.loads(command(*line, "x", "--tag", "best")[1])["runs"]) == ["a"]


def test_show_prints_a_run_or_an_object(folder, command):
    Run(folder / "a").note("größe")
    code, out, err = command("show", folder / "a")
    assert (code, err) == (0, "")
    assert out.startswith(f"{folder}/a: toy, new, changed ")
    assert "  größe\n" in out
    content = json.loads(command("show", folder / "a", "--json")[1])
    assert content["settings"] == {"rate": 0.1, "steps": 5}
    assert content["account"]["wall_s"] == 2.0
    assert [note["text"] for note in content["notes"]] == ["größe"]
    assert (content["events"], content["damage"], content["step"]) == ([], [], 3)


def test_compare_prints_a_table_or_an_object(folder, command):
    paths = [str(folder / name) for name in "ab"]
    code, out, err = command("compare", *paths)
    assert (code, err) == (0, "")
    assert ["rate", "0.1", "0.2"] in [line.split() for line in out.splitlines()]
    content = json.loads(command("compare", *paths, "--json")[1])
    assert content["names"] == paths
    assert content["settings"] == {"rate": [0.1, 0.2]}
    assert content["mean_losses"] == {"0": [4.0, 4.0], "1": [3.5, 3.5]}
    assert [row["step"] for row in content["summaries"]] == [3, 2]


def test_notes_and_tags_are_added_and_removed(folder, command):
    assert command("note", folder / "a", "a note") == (0, "", "")
    assert command("tag", folder / "a", "x", "y") == (0, "tags: best x y\n", "")
    assert command("tag", folder / "a", "best", "x", "--remove") == (0, "tags: y\n", "")
    run = Run(folder / "a")
    assert ([note.text for note in run.notes], run.tags) == (["a note"], ["y"])


@pytest.mark.parametrize(
    "line, code, message",
    [
        ("list nowhere", 2, "runs lie in a directory, got 'nowhere', which does not exist"),
        ("show nowhere", 2, "a run is a folder with run.json, got 'nowhere', which does not"),
        ("show nowhere", 2, "that was launched (list shows the runs of a directory)"),
        ("show data", 2, "a run is a folder with run.json, got 'data', which holds nothing"),
        ("show bad", 3, "'bad/run.json' must be JSON with settings, got a damaged file"),
        ("compare a bad", 3, "'bad/run.json' must be JSON with settings, got a damaged file"),
        ("compare a", 2, "compare needs two runs or more, each once, got a"),
        ("compare a a", 2, "compare needs two runs or more, each once, got a a"),
        ("note a ", 2, "a note must have a text, got an empty one: write a sentence"),
        ("note data x", 2, "a run is a folder with run.json, got 'data'"),
        ("show a --jsn", 2, "show has no option --jsn: did you mean --json?"),
        ("tag a none --remove", 2, "a tag to remove must be one of the run's, got 'none': its"),
        (
            "shwo a",
            2,
            "compare, watch, export, note, tag, got shwo: did you mean show?",
        ),
        ("list --tag", 2, "expected one argument"),
    ],
)
def test_what_is_wrong_is_answered_with_the_code_of_its_kind(
    folder, command, monkeypatch, line, code, message
):
    monkeypatch.chdir(folder)
    (folder / "data").mkdir()
    (folder / "bad").mkdir()
    (folder / "bad" / "run.json").write_text("{")
    got, out, err = command(*line.split(" "))
    assert (got, out) == (code, "")
    assert message in err
    assert "help: python -m dovetail_runs" in err
    if line.split()[0] in ("list", "show", "compare"):
        got, out, _ = command(*line.split(" "), "--json")
        answer = json.loads(out)
        assert got == code == answer["exit_code"]
        assert message in answer["error"]


def test_names_from_elsewhere_reach_the_terminal_as_symbols(folder, command, monkeypatch):
    """A folder, settings, tags or an error may come from another person."""
    monkeypatch.chdir(folder)
    end = {"event": "end", "time": EVIL, "outcome": EVIL, "error": EVIL}
    start = {"event": "start", "time": EVIL, "command": EVIL, "host": EVIL, "seeds": {EVIL: 1}}
    settings = {"rate": EVIL, EVIL: 1}
    lines = f'{{"step": 0, "generation": 0, "loss": 1, "eval/{EVIL}": 2}}\n{EVIL}\n'
    for name in (EVIL, f"{EVIL}2"):
        (folder / name).mkdir()
        content = {"recipe": EVIL, "settings": settings | {"name": name}}
        (folder / name / "run.json").write_text(json.dumps(content))
        events = "".join(json.dumps(event) + "\n" for event in (start, end))
        (folder / name / "launches.jsonl").write_text(events)
        (folder / name / "metrics.jsonl").write_text(lines.replace(EVIL, json.dumps(EVIL)[1:-1]))
        Run(folder / name).note(EVIL)
    (folder / f"{EVIL}3").mkdir()
    (folder / f"{EVIL}4").mkdir()
    (folder / f"{EVIL}4" / "run.json").write_text("{")
    outputs = [
        command("list", "."),
        command("show", EVIL),
        command("compare", EVIL, f"{EVIL}2"),
        command("show", f"{EVIL}3"),
        command("show", f"{EVIL}4"),
        command("list", f"{EVIL}5"),
        command("tag", EVIL, EVIL),
    ]
    assert [code for code, _, _ in outputs] == [0, 0, 0, 2, 3, 2, 2]
    for _, out, err in outputs:
        assert [c for c in out + err if not c.isprintable() and c != "\n"] == []
        assert "a" in out + err


@pytest.mark.parametrize("action", ["list", "show", "compare"])
def test_json_has_no_token_that_json_lacks(folder, command, written, action):
    odd = {"loss": "nan", "eval/x": "inf", "goodput": "nan", "step_time_s": "inf", "stall_s": "nan"}
    names = [written(name, [odd | {"step": i} for i in range(2)]).path for name in "xy"]
    line = {"list": [folder], "show": names[:1], "compare": names}[action]

    def refuse(token):
        raise AssertionError(token)

    code, out, _ = command(action, *line, "--json")
    assert code == 0
    json.loads(out, parse_constant=refuse)


def test_the_help_of_the_module_needs_no_jax():
    program = (
        "import runpy, sys\n"
        "sys.argv = ['dovetail_runs', '--help']\n"
        "try: runpy.run_module('dovetail_runs', run_name='__main__')\n"
        "except SystemExit as stopped: code = stopped.code\n"
        "heavy = {'jax', 'torch', 'pandas', 'matplotlib', 'scipy'} & sys.modules.keys()\n"
        "sys.exit(f'{code} {heavy}' if code or heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: python -m dovetail_runs" in done.stdout
    for word in ("list", "show", "compare", "note", "tag", "exit codes:"):
        assert word in done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("action", ["list", "show", "compare"])
def test_no_action_imports_jax(folder, action):
    paths = [str(folder / "a"), str(folder / "b")]
    line = {"list": [str(folder)], "show": paths[:1], "compare": paths}[action]
    program = (
        "import sys; from dovetail_runs.command import cli; code = cli.main(sys.argv[1:]); "
        "sys.exit(code or int('jax' in sys.modules))"
    )
    command = [sys.executable, "-c", program, action, *line]
    assert subprocess.run(command, check=True, capture_output=True).stdout

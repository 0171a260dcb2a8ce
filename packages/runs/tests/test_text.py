# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_runs import Run, compare, find
from dovetail_runs.command import text

START = {
    "event": "start",
    "time": "2026-01-02T03:04:05Z",
    "command": "train.py --out r",
    "host": "host",
    "cores": 2,
    "devices": {"platform": "gpu", "kind": "H100", "count": 8},
    "seeds": {"data": 1, "model": 2},
    "versions": {"python": "3.11.7", "jax": "0.10.2"},
    "git": {"directory": None, "code": {"commit": "a" * 40, "dirty": True}},
    "changes": {"rate": [0.1, None]},
}
END = {"event": "end", "time": "2026-01-02T03:09:05Z", "outcome": "finished"}


@pytest.fixture
def run(written):
    """A finished run of three updates."""
    lines = [
        {"step": i, "loss": 5.0 - i, "tokens_per_s": 1000.0, "step_time_s": 0.75, "stall_s": 0.25}
        for i in range(3)
    ]
    lines.append({"step": 3, "eval/bits": 2.5})
    settings = {"adam": {"rate": 0.1}, "steps": 9, "none": None, "skip": []}
    run = written("done", lines, settings=settings, recipe="pretrain", events=[START, END])
    run.tag("best")
    run.note("a good one")
    return run


def test_a_list_has_a_row_for_each_run(run, written, tmp_path):
    written("new")
    written("bad")
    (tmp_path / "bad" / "run.json").write_text("{")
    (tmp_path / "data").mkdir()
    shown = text.listed(tmp_path, find(tmp_path))
    rows = {line.split()[0]: line.split() for line in shown.splitlines()}
    assert shown.splitlines()[0].split() == [
        *("run", "recipe", "state", "step", "mean", "loss", "tokens/s", "stalled", "goodput"),
        *("age", "bits", "tags"),
    ]
    cells = ["done", "pretrain", "finished", "3/9", "4", "1,000", "25.0%", "75.0%"]
    assert rows["done"][:8] == cells
    assert rows["done"][-2:] == ["2.5", "best"]
    assert rows["new"][:8] == ["new", "-", "new", "0", "-", "-", "-", "-"]
    assert rows["bad"] == ["bad", "-", "damaged"]
    assert "damaged: bad: " in shown
    assert shown.endswith("no runs: data")
    assert "are over the last 100 updates, or all if there are fewer." in shown


def test_a_directory_without_a_run_says_so(tmp_path):
    assert text.listed(tmp_path, find(tmp_path)) == f"No run in {tmp_path}."


def test_a_run_is_shown_with_all_that_is_recorded(run):
    shown = text.shown(run)
    for expected in (
        "done: pretrain, finished, changed ",
        "  tags                        best\n",
        "Settings\n  rate   0.1\n  steps  9\n",
        "  last evaluation: bits       2.5\n",
        "  devices                     8 × H100\n",
        "  stalled                     25.0%\n",
        "  step      2.2 s, 75.0%\n",
        "  stalled   0.8 s, 25.0%\n",
        "2026-01-02T03:04:05Z  started: train.py --out r\n",
        "  devices   8 × H100 (",
        "  host      host, 2 cores\n",
        "  seeds     data 1, model 2\n",
        "  git       directory in no repository, code aaaaaaaaaaaa with changes\n",
        "  changes   rate 0.1 to -\n",
        "  versions  python 3.11.7, jax 0.10.2\n",
        "a good one\n",
    ):
        assert expected in shown
    assert shown.endswith("2026-01-02T03:09:05Z  finished")
    assert "none" not in shown  # settings that are not set
    assert "damaged" not in shown


def test_a_run_shows_how_many_texts_and_histograms_it_has(tmp_path):
    with Run(tmp_path / "r").launch() as launch:
        for step in range(3):
            launch.write_text(step, "sample", "a")
        launch.write_histogram(0, "kernel", [1.0, 2.0])
    lines = text.shown(Run(tmp_path / "r")).splitlines()
    at = lines.index("Media")
    assert sorted(lines[at + 1 : at + 3]) == ["  kernel  1 histogram", "  sample  3 texts"]


def test_a_run_shows_what_it_failed_of_and_what_is_damaged(written):
    failed = END | {"outcome": "failed", "error": "the disk is full"}
    run = written("r", [{"step": 0, "loss": "bad"}], events=[START, failed])
    shown = text.shown(run)
    assert "r: a run, failed, changed " in shown
    assert "  failed: the disk is full" in shown
    assert "Damaged lines, left out\n  metrics.jsonl:1  metrics.jsonl:1: no line of " in shown


def test_the_clock_that_went_back_and_the_slowest_process_are_shown(written):
    slow = {"seconds/step": 1.0, "straggler": 1.0, "straggler/data": 12.5, "straggler/others": 2.25}
    lines = [{"step": 0, "loss": 1.0}, {"step": 1, "time_s": 1.0, "loss": 1.0} | slow]
    shown = text.shown(written("r", lines))
    assert "  the clock went back by  1,699,999,999.0 s\n" in shown
    assert "  slowest                 process 1: 12.5 s of data, the others 2.2 s" in shown


def test_an_old_record_without_most_fields_is_shown(written):
    bare = {"event": "start", "time": "t"}
    shown = text.shown(written("r", events=[bare, {"event": "end", "time": "u"}]))
    assert "t  started: ?\n  host  ?, ? cores\n" in shown
    assert "u  ended" in shown


def test_a_comparison_has_a_column_for_each_run(run, written):
    lines = [{"step": i, "loss": 4.5} for i in range(2)]
    other = written("other", lines, settings={"adam": {"rate": 0.2}, "steps": 9}, events=[START])
    runs = {"a": run, "b": other}
    shown = text.compared(runs, compare(runs))
    rows = [line.split() for line in shown.splitlines()]
    for row in (
        *(["a", "b"], ["state", "finished", "unknown"], ["step", "3", "2"]),
        *(
            ["rate", "0.1", "0.2"],
            ["0", "5", "4.5"],
            ["1", "4.5", "4.5"],
            ["last", "evaluation:", "bits", "2.5", "-"],
        ),
        ["devices", "8", "×", "H100", "8", "×", "H100"],
    ):
        assert row in rows
    assert "Versions that differ: none" in shown


def test_a_long_comparison_shows_ten_steps_first_and_last_included(written):
    lines = [{"step": i, "loss": 1.0} for i in range(100)]
    runs = {name: written(name, lines) for name in "ab"}
    rows = text.compared(runs, compare(runs)).split("Mean loss at common steps\n")[1]
    steps = [int(line.split()[0]) for line in rows.splitlines() if line.split()[0].isdigit()]
    assert steps == [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]


def test_columns_are_as_wide_as_their_widest_cell():
    rows = [["a", "bb"], ["a title of a section, in one cell"], ["ccc", ""], []]
    assert text.table(rows) == "a    bb\na title of a section, in one cell\nccc\n"


@pytest.mark.parametrize(
    "content, shown",
    [
        *[(None, "-"), (0.1234567, "0.123457"), (1e-9, "1e-09"), (3, "3"), (True, "True")],
        *[([1, 2], "[1, 2]"), ("x", "x"), (float("nan"), "nan")],
    ],
)
def test_values_have_six_digits(content, shown):
    assert text.value(content) == shown


def test_pages_in_the_folder_are_named(run):
    assert "page: " not in text.shown(run)
    for name in ("profile.html", "curves.html", "notes.txt"):
        (run.path / name).write_text("")
    assert [page.name for page in run.pages] == ["curves.html", "profile.html"]
    lines = [f"page: {run.path / name}" for name in ("curves.html", "profile.html")]
    assert text.shown(run).splitlines()[-2:] == lines

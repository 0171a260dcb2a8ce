# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The content of a page: complete, strict JSON, escaped, and small."""

import html.parser
import json

import numpy as np
import pytest

from dovetail_runs import Run, page, read_metrics
from dovetail_runs.metrics.metrics import Lines, Metrics
from dovetail_runs.pages.content import BYTES, content

HOSTILE = "<script>alert(1)</script>&\"'"


def launched(folder, scalars, settings=None, **options):
    run = Run(folder)
    with run.launch(settings, **options) as launch:
        for step, values in enumerate(scalars):
            launch.write(step, values)
    return run


def test_charts_begin_with_the_loss_and_leave_totals_out(tmp_path):
    scalars = {"seconds/step": 1, "goodput": 1, "zeta": 1, "tokens_per_s": 1, "eval/loss": 1}
    run = launched(tmp_path / "r", [{**scalars, "loss": 2.5}])
    charts = content({"r": run})["charts"]
    assert [chart["name"] for chart in charts] == ["loss", "eval/loss", "tokens_per_s", "zeta"]
    assert charts[0]["lines"] == [{"run": 0, "raw": [[0], [2.5]], "count": 1, "lost": 0}]


def test_runs_without_a_scalar_have_no_line_of_it(tmp_path):
    first = launched(tmp_path / "a", [{"loss": 1.0}])
    second = launched(tmp_path / "b", [{"loss": 2.0, "own": 3.0}])
    charts = {c["name"]: c["lines"] for c in content({"a": first, "b": second})["charts"]}
    assert [line["run"] for line in charts["loss"]] == [0, 1]
    assert [line["run"] for line in charts["own"]] == [1]


def test_values_that_are_not_finite_are_gaps_and_are_counted(tmp_path):
    values = [1.0, float("nan"), float("-inf"), 2.0]
    run = launched(tmp_path / "r", [{"loss": value} for value in values])
    (chart,) = content({"r": run})["charts"]
    assert chart["lines"][0]["raw"] == [[0, 1, 2, 3], [1.0, None, None, 2.0]]
    assert chart["lines"][0]["lost"] == 2
    json.dumps(content({"r": run}), allow_nan=False)


def test_later_launches_and_skipped_steps_are_marked(tmp_path):
    run = launched(tmp_path / "r", [{"loss": 1.0, "skipped": float(i == 2)} for i in range(4)])
    with run.launch() as launch:
        launch.write(3, {"loss": 1.0})
    assert content({"r": run})["marks"] == [{"resumed": [3], "skipped": [2], "stalled": []}]


def test_steps_that_waited_longer_than_they_worked_are_marked(tmp_path):
    run = Run(tmp_path / "r")
    with run.launch() as launch:
        launch.write(0, {"loss": 1.0, "stall_s": 9.0})  # the first step has no time of its own
        for step, stall_s in enumerate([0.1, 0.6, 0.5, float("nan")], start=1):
            launch.write(step, {"loss": 1.0, "step_time_s": 0.5, "stall_s": stall_s})
    shown = content({"r": run})
    assert shown["marks"][0]["stalled"] == [2]
    assert [chart["name"] for chart in shown["charts"]] == ["loss", "step_time_s"]


def test_charts_stand_in_groups_under_names_in_words(tmp_path):
    names = ("rewards/chosen", "own", "grad_norm", "mfu", "rewards/margin", "loss/web", "loss")
    run = launched(tmp_path / "r", [dict.fromkeys((*names, "eval/bits", "eval_ema/error"), 1.0)])
    shown = content({"r": run}, leave_out=["own", "eval/bits"])
    charts = shown["charts"]
    assert "bits" not in shown["tables"]
    assert [(chart["group"], chart["title"]) for chart in charts] == [
        ("Loss", "training loss"),
        ("Loss", "loss: web"),
        ("Evaluation", "eval ema: error"),
        ("Throughput", "share of the peak FLOPs, model"),
        ("Norms", "gradient norm"),
        ("Rewards", "rewards: chosen"),
        ("Rewards", "rewards: margin"),
    ]
    assert [chart["name"] for chart in charts if chart["from_zero"]] == ["mfu"]


def test_metrics_of_a_file_have_a_page_too(tmp_path):
    run = launched(tmp_path / "r", [{"loss": float(i), "seconds/save": 2.0 * i} for i in range(3)])
    shown = content({"run": run, "file": read_metrics(run.path / "metrics.jsonl")})
    assert [line["raw"] for line in shown["charts"][0]["lines"]] == [[[0, 1, 2], [0, 1, 2]]] * 2
    rows = Tables(shown["tables"]).rows
    assert rows["mean loss"] == ["1", "1"]
    assert rows["state"] == ["finished", "–"]
    assert rows["waiting for checkpoints"] == ["4.0 s", "4.0 s"]


def test_a_job_on_many_hosts_has_a_table(tmp_path):
    run = launched(tmp_path / "r", [{"loss": 1.0}])
    events = [
        ("begin", {"hosts": [2]}),
        ("state", {"state": "running"}),
        ("end", {"outcome": "finished"}),
    ]
    lines = [{"event": name, "time": 100.0 + i, **more} for i, (name, more) in enumerate(events)]
    (run.path / "job.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    rows = Tables(content({"r": run})["tables"]).rows
    assert rows["launch 0"] == ["finished after 2.0 s, 0 reports"]
    assert rows["█ running"] == ["1.0 s, 50.0%"]


def test_long_curves_have_medians_of_each_level(tmp_path):
    run = launched(tmp_path / "r", [{"loss": float(i)} for i in range(60)])
    (line,) = content({"r": run})["charts"][0]["lines"]
    assert set(line["medians"]) == {"1", "2", "5", "10"}
    assert line["medians"]["10"][0][-1] == 59


class Tables(html.parser.HTMLParser):
    """Rows by their first cell; any tag that a table has not is kept too."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.foreign, self._row = {}, [], None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in {"section", "h2", "table", "thead", "tbody", "tr", "th", "td"}:
            self.foreign.append(tag)
        self._row = [] if tag == "tr" else self._row

    def handle_data(self, data):
        if self._row is not None:
            self._row.append(data)

    def handle_endtag(self, tag):
        if tag == "tr" and self._row:
            self.rows[self._row[0]] = self._row[1:]
            self._row = None


def test_tables_hold_figures_settings_and_notes_escaped(tmp_path):
    first = launched(tmp_path / "a", [{"loss": 1.0}], {"rate": 0.1, "same": 1, "name": HOSTILE})
    second = launched(tmp_path / "b", [{"loss": 2.0}], {"rate": 0.2, "same": 1, "name": "b"})
    first.note(HOSTILE)
    shown = Tables(content({HOSTILE: first, "b": second})["tables"])
    assert shown.foreign == []
    assert shown.rows["rate"] == ["0.1", "0.2"]
    assert shown.rows["name"] == [HOSTILE, "b"]
    assert "same" not in shown.rows
    assert shown.rows["mean loss"] == ["1", "2"]
    assert [HOSTILE, "–"] in shown.rows.values()  # the note


def test_nothing_of_a_run_ends_the_script_of_the_page(tmp_path):
    run = launched(tmp_path / "r", [{"loss": 1.0, "</script><b>": 2.0}])
    document = page({HOSTILE: run}, title=HOSTILE).html
    assert HOSTILE not in document
    assert "</script><b>" not in document
    values = document.partition('id="content">')[2].partition("</script>")[0]
    assert json.loads(values)["runs"] == [HOSTILE]


@pytest.mark.thorough
@pytest.mark.parametrize("runs, scalars, steps", [(10, 6, 100_000), (10, 60, 2_000), (1, 1, 60)])
def test_the_numbers_of_a_page_stay_below_a_megabyte(tmp_path, monkeypatch, runs, scalars, steps):
    rng = np.random.default_rng(0)
    numbers = np.arange(steps)
    columns = {f"scalar {i}": (numbers, rng.standard_normal(steps)) for i in range(scalars)}
    lines = Lines(steps=numbers, generations=0 * numbers, times_s=1.0 * numbers, columns=columns)
    monkeypatch.setattr(Run, "metrics", Metrics(lines=lines))
    some = {f"run {i}": launched(tmp_path / str(i), []) for i in range(runs)}
    size = len(json.dumps(content(some), separators=(",", ":")))
    assert size < 1_000_000
    assert size > min(BYTES // 4, runs * scalars * steps)  # and hold what fits

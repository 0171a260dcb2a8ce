# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import html
from pathlib import Path

from dovetail_checkpoint import IntegrityReport, Problem, StepReport


def test_a_report_reads_as_sentences():
    problems = (Problem(where="item/w", reason="a"), Problem(where="f", reason="b"))
    report = IntegrityReport(
        steps=(
            StepReport(path=Path("run/3"), step=3, verified=False, problems=problems),
            StepReport(path=Path("run/2"), step=2, verified=False),
            StepReport(path=Path("run/1"), step=1, verified=True),
        )
    )
    assert str(report).splitlines() == [
        "step 3 is damaged: item/w: a; f: b",
        "step 2 is readable, not verified",
        "step 1 is verified",
    ]
    assert repr(report) == (
        "IntegrityReport(3 steps, 1 damaged, 1 readable, not verified, 1 verified; print it)"
    )
    assert repr(report.steps[0]) == "StepReport('run/3': damaged, problems: 2; print it)"
    assert repr(report.steps[2]) == "StepReport('run/1': verified, no problem)"
    for shown in (report, report.steps[0]):
        assert html.unescape(shown._repr_html_()) == f"<pre>{shown}</pre>"


def test_a_repr_counts_the_problems_of_the_run():
    report = IntegrityReport(problems=(Problem(where="dovetail-run.json", reason="is cut"),))
    assert repr(report) == "IntegrityReport(0 steps, problems of the run: 1; print it)"


def test_nothing_tried_is_said():
    assert str(IntegrityReport()) == "no step was read"

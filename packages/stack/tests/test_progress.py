# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
from dovetail_stack.progress import Bar, Lines


def test_the_bar_shows_the_median_rate_of_the_last_steps(capsys):
    with Bar(steps=60) as bar:
        for step in range(60):
            rate = {0: {}, 59: {"tokens_per_s": 2e6}}.get(step, {"tokens_per_s": 8000.0})
            bar.write(step, {"loss": 2.5, **rate})
    shown = capsys.readouterr().err.split("\r")[-1]
    assert "60/60" in shown
    assert "loss 2.500, median 8,000 tokens/s" in shown


def test_lines_come_at_the_first_step_at_the_last_and_seldom_between(capsys):
    lines = Lines(steps=4, every_s=3600.0)
    for step in range(4):
        lines.write(step, {"loss": 4.0 - step, "tokens_per_s": 8000.0})
        lines.write(step + 1, {"eval/loss": 1.0})
    assert capsys.readouterr().err.splitlines() == [
        "step 1/4: loss 4.000, median 8,000 tokens/s",
        "step 4/4: loss 1.000, median 8,000 tokens/s",
    ]

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
from dovetail_stack.progress import Bar


def test_the_bar_shows_the_median_rate_of_the_last_steps(capsys):
    with Bar(steps=60) as bar:
        for step in range(60):
            rate = {0: {}, 59: {"tokens_per_s": 2e6}}.get(step, {"tokens_per_s": 8000.0})
            bar.write(step, {"loss": 2.5, **rate})
    shown = capsys.readouterr().err.split("\r")[-1]
    assert "60/60" in shown
    assert "loss 2.500, median 8,000 tokens/s" in shown

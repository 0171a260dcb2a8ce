# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from dovetail_infer.schedule.__main__ import main
from dovetail_infer.schedule.plan import Group, Limits
from dovetail_infer.schedule.scheduler import Scheduler
from dovetail_infer.schedule.sequence import Sequence

SIZES = ["--page-size", "4", "--length", "32", "--step-tokens", "8", "--fixed-s", "1"]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    line = {
        "time_s": 0.0,
        "prompt_tokens": 9,
        "output_tokens": 2,
        "prefix": "a",
        "prefix_tokens": 8,
    }
    path.write_text("\n".join(json.dumps({**line, "time_s": t}) for t in (0.0, 50.0)))
    return str(path)


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.jsonl"
    limits = Limits(
        page_size=4, step_tokens=8, max_rows=2, max_length=16, groups=(Group(window=None, pages=4),)
    )
    with path.open("w") as file:
        scheduler = Scheduler(limits, record=lambda event: print(json.dumps(event), file=file))
        scheduler.add(Sequence(request_id=1, ids=[5, 6], prompt_length=2, max_total=3))
        scheduler.plan()
    return path


def test_simulate_prints_a_table_or_one_object(trace, capsys):
    assert main(["simulate", trace, "--pages", "8", "--window", "5:8", *SIZES]) == 0
    assert "first_token_s" in capsys.readouterr().out
    assert main(["simulate", trace, "--pages", "8", "--window", "5:8", *SIZES, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["pages"] == [8, 8]
    assert summary["cached_tokens"] == 8
    assert summary["end_to_end_s"]["mean"] == 2.5  # three steps, then two
    assert main(["simulate", trace, "--pages", "8", *SIZES, "--no-prefix-cache", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cached_tokens"] == 0


def test_too_few_pages_fail_with_the_options_to_change(trace, capsys):
    assert main(["simulate", trace, "--pages", "7", *SIZES]) == 2
    error = capsys.readouterr().err
    assert "--length 32, got --pages 7 with no --window; pass --pages 8 or more" in error


@pytest.mark.parametrize(
    "line", ["{}", "3", "{", '{"time_s": 0, "prompt_tokens": 0, "output_tokens": 1}']
)
def test_a_damaged_trace_is_refused_by_line(tmp_path, capsys, line):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"time_s": 0, "prompt_tokens": 1, "output_tokens": 1}\n' + line)
    assert main(["simulate", str(path), "--pages", "8", *SIZES]) == 3
    assert "each line of a trace must be an object with time_s, prompt_tokens" in (
        error := capsys.readouterr().err
    )
    assert "got line 2: " in error


def test_replay_counts_or_refuses_a_log(log, capsys):
    assert main(["replay", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["running"] == 1
    assert main(["replay", str(log)]) == 0
    assert "prompt_tokens" in capsys.readouterr().out
    log.write_text(log.read_text().replace('"preempted": []', '"preempted": [7]'))
    assert main(["replay", str(log)]) == 3
    assert "got line 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["simulate"],
        ["simulate", "t", "--pages", "8", "--window", "5"],
        ["replay", "l", "--fast"],
    ],
)
def test_a_wrong_command_line_has_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    assert "help: python -m dovetail_infer.schedule" in capsys.readouterr().err


def test_a_missing_file_fails(tmp_path):
    assert main(["replay", str(tmp_path / "none")]) == 2

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import json
import logging
import time

import pytest

from dovetail_runs import Run
from dovetail_runs.record import job


def _written(run, *events):
    lines = [{"event": kind, "time": at, **values} for kind, at, values in events]
    (run / job.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))


def _state(at, state):
    return "state", at, {"state": state}


@pytest.fixture
def run(tmp_path):
    """Two launches: one that restarts and is suspended, one that was killed."""
    _written(
        tmp_path,
        ("begin", 100.0, {"hosts": [1, 2]}),
        _state(102.0, "waiting"),
        _state(110.0, "running"),
        _state(150.0, "stuck"),
        ("log", 158.0, {"text": "rank 1 is behind"}),
        _state(160.0, "restarting"),
        _state(165.0, "running"),
        _state(195.0, "draining"),
        _state(200.0, "suspended"),
        ("end", 200.5, {"outcome": "interrupted"}),
        ("begin", 300.0, {"hosts": [2]}),
        _state(301.0, "running"),
    )
    return tmp_path


def test_spans_follow_each_other_from_the_begin_to_the_end(run):
    first, second = job.read_job(run)
    assert first.spans == [
        ("waiting", 100.0, 102.0),
        ("waiting", 102.0, 110.0),
        ("running", 110.0, 150.0),
        ("stuck", 150.0, 160.0),
        ("restarting", 160.0, 165.0),
        ("running", 165.0, 195.0),
        ("draining", 195.0, 200.0),
        ("suspended", 200.0, 200.5),
    ]
    assert (first.outcome, first.hosts, first.end_s) == ("interrupted", (1, 2), 200.5)
    assert first.log == [(158.0, "rank 1 is behind")]
    totals = job.seconds(first.spans)
    assert list(totals) == ["running", "draining", "restarting", "stuck", "waiting", "suspended"]
    assert totals["running"] == 70.0
    assert sum(totals.values()) == pytest.approx(first.end_s - first.begin_s)
    assert second.outcome is None


def test_a_launch_without_an_end_lasted_until_its_last_sign_of_life(run):
    first, second = job.read_job(run, alive_s=[120.0, 250.0, 299.0, 340.0, 330.0])
    assert first.end_s == 200.5
    assert second.spans == [("waiting", 300.0, 301.0), ("running", 301.0, 340.0)]
    first, second = job.read_job(run)
    assert second.spans == [("waiting", 300.0, 301.0)]


def test_a_killed_launch_ends_before_the_next_one(tmp_path):
    begins = [("begin", at, {"hosts": [2]}) for at in (100.0, 300.0)]
    _written(tmp_path, begins[0], _state(101.0, "running"), begins[1], _state(301.0, "running"))
    first, second = job.read_job(tmp_path, alive_s=[250.0, 340.0])
    assert (first.end_s, second.end_s) == (250.0, 340.0)


def test_the_bar_has_the_longest_state_of_each_part(run):
    first, _ = job.read_job(run)
    assert first.bar(10) == ".████!███▓"
    assert len(first.bar()) == 60
    assert job.JobLaunch(begin_s=1.0).bar() == ""
    json.dumps(first.json())


def test_a_run_without_many_hosts_has_no_job(tmp_path):
    assert job.read_job(tmp_path) == []


def test_states_and_log_are_written_as_they_come(tmp_path):
    logger = logging.getLogger("hosts")
    before = logger.level
    with job.recorded(tmp_path, [2], logger="hosts") as recorder:
        (launch,) = job.read_job(tmp_path)
        assert launch.outcome is None
        recorder.enter("running", time.monotonic() - 5.0)
        logger.info("generation %d starts", 0)
        logger.debug("a detail")
        recorder.end("finished")
    logger.warning("after the end")
    assert logger.level == before
    (launch,) = job.read_job(tmp_path)
    assert [text for _, text in launch.log] == ["generation 0 starts"]
    assert launch.outcome == "finished"
    (line,) = [
        x for x in map(json.loads, (tmp_path / job.FILE).read_text().splitlines()) if "state" in x
    ]
    assert line["time"] == pytest.approx(time.time() - 5.0, abs=60)
    assert line["time"] < time.time() - 4.9


def test_an_error_is_the_end_of_a_launch(tmp_path):
    with pytest.raises(KeyboardInterrupt), job.recorded(tmp_path, [2], logger="hosts"):
        raise KeyboardInterrupt
    assert job.read_job(tmp_path)[0].outcome == "failed"


def test_a_line_that_is_no_event_is_left_out_and_named(run):
    whole = job.read_job(run)
    file = run / job.FILE
    file.write_text("{}\n" + file.read_text())
    assert job.read_job(run) == whole
    assert Run(run).damage == ["job.jsonl:1: no event of a run: '{}'"]

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail runs` over directories that were written as `dovetail train` writes them."""

import itertools
import json
import os
import subprocess
import sys

import pytest

from dovetail_runs.record import launch, machine
from dovetail_stack import cli, settings
from dovetail_stack.settings import Continue, Pretrain
from dovetail_train import Jsonl

UPDATED = 1_700_000_000  # when a run was last written to
VERSIONS = {"python": "3.11.7", "jax": "0.10.2"}


def _start(**other):
    return {
        "event": "start",
        "time": "2026-01-02T03:04:05Z",
        "command": "dovetail train pretrain --out r",
        "host": machine.host(),
        "cores": 2,
        "devices": {"platform": "cpu", "kind": "cpu", "count": 4, "mesh": {"fsdp": 4}},
        "seeds": {"seed": 0},
        "versions": VERSIONS,
        "git": {"directory": None, "code": {"commit": "a" * 40, "dirty": True}},
        **other,
    }


def _end(outcome, **other):
    return {"event": "end", "time": "2026-01-02T03:09:05Z", "outcome": outcome, **other}


def _write(path, *events, losses=(), rates=(), evaluated=None, made=None, skipped=()):
    """A run that logged these losses from step 0 on. Steps take 3 s, and the devices wait 1 s."""
    (made or settings.create(Pretrain, {"text": "/t", "steps": 9})).save(path)
    (path / launch.FILE).write_text("".join(json.dumps(event) + "\n" for event in events))
    time_s = itertools.count(0.0, 5.0)
    sink = Jsonl(path / "metrics.jsonl", now=lambda: next(time_s))
    for step, loss in enumerate(losses):
        rate = {"tokens_per_s": rates[step], "step_time_s": 3.0, "stall_s": 1.0} if rates else {}
        scalars = {"loss": loss, "goodput": 0.5 + step / 100, "skipped": float(step in skipped)}
        sink.write(step, scalars | rate)
        if evaluated and step + 1 in evaluated:
            sink.write(step + 1, evaluated[step + 1])
    return path


@pytest.fixture
def folder(tmp_path):
    evaluated = {2: {"eval/bits_per_byte": 3.5, "eval/loss": 4.0}, 3: {"eval/bits_per_byte": 2.5}}
    _write(
        tmp_path / "done",
        *(_start(), _end("finished")),
        losses=(5.0, 4.0, 3.0),
        rates=(10.0, 1000.0, 30.0),
        evaluated=evaluated,
    )
    tuned = settings.create(Continue, {"text": "/t", "model": "/m", "steps": 9, "lora_rank": 4})
    other = _start(versions={**VERSIONS, "jax": "0.12.0"})
    _write(tmp_path / "other", other, _end("interrupted"), losses=(4.5, 4.25), made=tuned)
    _write(tmp_path / "dead", _start())
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{")
    (tmp_path / "notes").mkdir()
    (tmp_path / "a file").write_text("")
    return tmp_path


def _printed(capsys, *line):
    assert cli.main(["runs", *map(str, line)]) == 0
    return capsys.readouterr().out


def test_list_has_a_row_for_each_run_and_names_the_rest(folder, capsys):
    shown = _printed(capsys, "list", folder)
    rows = {line.split()[0]: line.split() for line in shown.splitlines()}
    done = ["done", "pretrain", "finished", "3/9", "4", "30", "25.0%", "52.0%"]
    assert rows["done"][:8] == done  # the mean of 5, 4 and 3
    assert rows["other"][:6] == ["other", "continue", "interrupted", "2/9", "4.375", "-"]
    assert rows["dead"][:5] == ["dead", "pretrain", "killed", "0/9", "-"]
    assert rows["bad"] == ["bad", "-", "damaged"]
    assert "damaged: bad: " in shown
    assert "begin a new run" in shown
    assert "no runs: notes" in shown
    assert "run  " in shown
    assert "mean loss  tokens/s  stalled  goodput  age" in shown
    assert "are over the last 100 updates, or all if there are fewer." in shown


def test_the_loss_is_a_mean_and_the_rate_a_median_of_the_last_updates(tmp_path, capsys):
    losses = [100.0] * 50 + [3.0, 1.0] * 50 + [77.0]
    rates = [7.0] * 50 + [8e3] * 99 + [2e6, 0.5]
    path = _write(tmp_path / "r", _start(), losses=losses, rates=rates, skipped=[150])
    summary = json.loads(_printed(capsys, "list", path, "--json"))["runs"]["r"]
    assert (summary["step"], summary["window"]) == (151, 100)
    assert (summary["mean_loss"], summary["tokens_per_s"]) == (2.0, 8e3)  # not that of the skipped
    assert summary["stalled"] == 0.25
    assert "loss" not in summary


def test_list_as_json_has_the_same_and_reads_a_single_run(folder, capsys):
    for age, name in enumerate(("metrics.jsonl", launch.FILE, settings.FILE)):
        os.utime(folder / "done" / name, (0, UPDATED - age))
    found = json.loads(_printed(capsys, "list", folder, "--json"))
    assert set(found["runs"]) == {"done", "other", "dead"}
    done = found["runs"]["done"]
    assert (done["step"], done["steps"], done["window"], done["mean_loss"]) == (3, 9, 3, 4.0)
    assert (done["tokens_per_s"], done["goodput"]) == (30.0, 0.52)
    assert done["evaluations"] == {"eval/bits_per_byte": [3, 2.5], "eval/loss": [2, 4.0]}
    assert done["updated"] == UPDATED
    assert found["foreign"] == ["notes"]
    assert set(found["damaged"]) == {"bad"}
    assert set(json.loads(_printed(capsys, "list", folder / "done", "--json"))["runs"]) == {"done"}


def test_show_tells_settings_starts_and_evaluations(folder, capsys):
    shown = _printed(capsys, "show", folder / "done")
    for part in (
        "pretrain, finished",
        "vocab_size            4096",
        "last evaluation: bits per byte  2.5",
        "last evaluation loss            4",
        "2026-01-02T03:04:05Z  started: dovetail train pretrain --out r",
        "4 × cpu (fsdp=4)",
        "git       directory in no repository, code aaaaaaaaaaaa with changes",
        "versions  python 3.11.7, jax 0.10.2",
        "2026-01-02T03:09:05Z  finished",
    ):
        assert part in shown
    found = json.loads(_printed(capsys, "show", folder / "done", "--json"))
    assert found["settings"]["training"]["length"] == 256
    assert found["evaluations"]["eval/loss"] == [2, 4.0]
    assert [event["event"] for event in found["events"]] == ["start", "end"]


def test_show_says_what_a_run_failed_of(tmp_path, capsys):
    run = _write(tmp_path / "r", _start(), _end("failed", error="the disk is full"))
    shown = _printed(capsys, "show", run)
    assert "pretrain, failed" in shown
    assert "failed: the disk is full" in shown


def test_compare_shows_what_differs_and_only_that(folder, capsys):
    paths = [str(folder / "done"), str(folder / "other")]
    found = json.loads(_printed(capsys, "compare", *paths, "--json"))
    assert found["names"] == paths
    assert found["settings"]["recipe"] == ["pretrain", "continue"]
    assert found["settings"]["lora_rank"] == [None, 4]
    assert found["settings"]["embed"] == [192, None]
    assert not {"text", "steps", "length"} & found["settings"].keys()
    assert found["devices"] == ["4 × cpu", "4 × cpu"]
    assert found["versions"] == {"jax": ["0.10.2", "0.12.0"]}
    assert found["mean_losses"] == {"0": [5.0, 4.5], "1": [4.5, 4.375]}  # up to the step
    assert found["evaluations"]["eval/bits_per_byte"] == [2.5, None]
    turned = json.loads(_printed(capsys, "compare", *reversed(paths), "--json"))
    assert turned["mean_losses"] == {"0": [4.5, 5.0], "1": [4.375, 4.5]}
    assert [row["tokens_per_s"] for row in found["summaries"]] == [30.0, None]
    shown = _printed(capsys, "compare", *paths)
    rows = [line.split() for line in shown.splitlines()]
    for row in (["lora_rank", "-", "4"], ["jax", "0.10.2", "0.12.0"], ["1", "4.5", "4.375"]):
        assert row in rows


def test_compare_wants_two_runs_and_runs(folder, capsys):
    for line in ([folder / "done"], [folder / "done", folder / "done"]):
        with pytest.raises(SystemExit):
            cli.main(["runs", "compare", *map(str, line)])
        assert "compare needs two runs or more, each once, got" in capsys.readouterr().err
    assert cli.main(["runs", "compare", str(folder / "done"), str(folder / "notes")]) == 2
    assert "a run is a folder with run.json, got" in capsys.readouterr().err


@pytest.mark.capability("the slowest process of a run is named")
def test_the_process_that_the_others_wait_for_is_shown(folder, capsys):
    slow = {"straggler": 1, "straggler/data": 12.5, "straggler/others": 2.25}
    Jsonl(folder / "done" / "metrics.jsonl").write(3, {"seconds/step": 50.0, **slow})
    line = "slowest   process 1: 12.5 s of data, the others 2.2 s"
    assert line in _printed(capsys, "show", folder / "done")
    shown = json.loads(_printed(capsys, "show", folder / "done", "--json"))["account"]["straggler"]
    assert shown == {"process": 1, "activity": "data", "own_s": 12.5, "others_s": 2.25}


@pytest.mark.thorough
def test_no_action_imports_jax(folder):
    program = (
        "import sys; from dovetail_stack import cli; cli.main(sys.argv[1:]); "
        "sys.exit('jax' in sys.modules)"
    )
    paths = [str(folder / "done"), str(folder / "other")]
    for line in (["list", str(folder)], ["show", paths[0]], ["compare", *paths]):
        command = [sys.executable, "-c", program, "runs", *line]
        subprocess.run(command, check=True, capture_output=True, env=os.environ)


def test_compare_writes_a_page(folder, capsys, tmp_path):
    page = tmp_path / "page.html"
    _printed(capsys, "compare", folder / "done", folder / "other", "--html", page)
    text = page.read_text()
    for part in ("lora_rank", "continue", str(folder / "done"), "0.12.0"):
        assert part in text


def _with_job(path, *starts):
    """A run of two steps of 3 s each, at 0 and 5 s, whose job on many hosts took 20 s."""
    _write(path, *starts, _end("finished"), losses=(5.0, 4.0), rates=(10.0, 10.0))
    lines = [
        {"event": "begin", "time": 0.0, "hosts": [2]},
        {"event": "state", "time": 4.0, "state": "running"},
        {"event": "log", "time": 9.0, "text": "generation 0 failed: rank 1 was killed"},
        {"event": "log", "time": 9.0, "text": "Traceback (most recent call last):\n  File x"},
        {"event": "log", "time": 9.0, "text": "The job is stuck\n    File y"},
        {"event": "state", "time": 9.0, "state": "restarting"},
        {"event": "state", "time": 10.0, "state": "running"},
        {"event": "end", "time": 20.0, "outcome": "finished"},
    ]
    (path / "job.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.capability("the states of a job on many hosts, and its goodput over restarts")
def test_show_draws_the_states_of_a_job_on_many_hosts(tmp_path, capsys):
    path = _with_job(tmp_path / "r", _start(generation=0), _start(generation=1))
    shown = _printed(capsys, "show", path).splitlines()
    bar = "." * 12 + "█" * 15 + "░" * 3 + "█" * 30
    begin = shown.index("On many hosts")
    assert shown[begin : begin + 7] == [
        "On many hosts",
        "  launch 0          finished after 20.0 s, 3 reports",
        "  █ running         15.0 s, 75.0%",
        "  ░ restarting      1.0 s, 5.0%",
        "  . waiting         4.0 s, 20.0%",
        "  steps that count  30.0%",
        "",
    ]
    begin = shown.index("1970-01-01T00:00:00Z  on many hosts")
    assert shown[begin + 1 : begin + 5] == [
        f"  {bar}",
        "       9.0 s  generation 0 failed: rank 1 was killed",
        "       9.0 s  The job is stuck",
        "",
    ]
    assert any(line.endswith("--out r, start 1 of its job") for line in shown)
    content = json.loads(_printed(capsys, "show", path, "--json"))
    assert content["job_goodput"] == content["account"]["step_s"] / 20.0 == 0.3
    assert [span[0] for span in content["job"][0]["spans"]] == [
        *("waiting", "running", "restarting", "running")
    ]

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The options of `dovetail train` for many hosts, as far as they go before a host is started."""

import contextlib
import importlib.util
import subprocess
import sys
import types

import pytest

from dovetail_stack import cli, many_hosts, settings, training
from dovetail_stack.settings import Pretrain


@pytest.fixture
def texts(tmp_path):
    directory = tmp_path / "texts"
    directory.mkdir()
    for name in "xy":
        (directory / name).write_text("words")
    return directory


def _refused(capsys, texts, *line):
    out = texts.parent / "run"
    code = cli.main(["train", "pretrain", "--text", str(texts), "--out", str(out), *line])
    assert not out.exists()
    return code, " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "line, wanted",
    [
        ("--hosts 2 --coordinator h:1", "got --hosts and --coordinator: leave out one of them"),
        ("--slurm --process 0", "got --slurm and --process: leave out one of them"),
        ("--ray auto --estimate H200", "got --ray and --estimate: leave out one of them"),
        ("--hosts 2 --print-settings", "got --hosts and --print-settings: leave out one of them"),
        ("--fewest-hosts 1", "--fewest-hosts must come with hosts, got none: add --hosts N"),
        ("--stall 5", "--stall must come with hosts, got none: add --hosts N"),
        ("--slurm --hosts 2", "must be those of its allocation, got --hosts too: leave it out"),
        ("--slurm --ray auto", "must be those of its allocation, got --ray too: leave it out"),
        ("--hosts 0", "--hosts must be at least 1, got --hosts 0: pass 2"),
        ("--hosts 2 --fewest-hosts 0", "must be at least 1, got --fewest-hosts 0: pass 2"),
        ("--hosts 2 --fewest-hosts 3", "must be at most the 2 hosts, got --fewest-hosts 3"),
        ("--hosts 2 --stall 0", "must be a number of seconds above 0, got --stall 0.0"),
    ],
)
def test_options_that_contradict_each_other_are_refused(line, wanted, capsys, texts):
    code, shown = _refused(capsys, texts, *line.split())
    assert code == 2
    assert wanted in shown


def test_without_ray_the_message_says_how_to_install_it(capsys, texts, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, shown = _refused(capsys, texts, "--ray", "h:1")
    assert code == 1
    assert 'got --ray h:1 without it: type pip install "dovetail-stack[ray]"' in shown


def test_a_check_of_records_is_refused(capsys, tmp_path):
    line = ("--records", "a.jsonl", "--model", "m", "--check", "--hosts", "2")
    assert cli.main(["train", "chat", "--out", str(tmp_path / "run"), *line]) == 2
    assert "got --hosts and --check: leave out one of them" in capsys.readouterr().err


def test_a_number_of_hosts_that_does_not_divide_the_batch_is_refused_with_those_that_do(
    capsys, texts
):
    code, shown = _refused(capsys, texts, "--hosts", "5", "--global-batch", "12")
    assert code == 2
    assert "the mesh of 5 hosts with 1 devices each must fit" in shown
    assert "got --global-batch 12: pass --global-batch 15" in shown
    assert "Numbers of hosts that fit: 1, 2, 3, 4" in shown
    line = ("--hosts", "6", "--fewest-hosts", "5", "--global-batch", "12")
    code, shown = _refused(capsys, texts, *line)
    assert code == 2
    assert "the mesh of 5 hosts" in shown
    assert "Numbers of hosts that fit: 1, 2, 3, 4, 6" in shown


@pytest.mark.parametrize(
    "given, devices, wanted",
    [
        ({}, 1, (6,)),
        ({"fewest_hosts": 2}, 1, (2, 3, 4, 6)),
        ({"fewest_hosts": 1}, 2, (1, 2, 3, 6)),
        ({"fewest_hosts": 6, "context": 2}, 1, (6,)),
        ({"fewest_hosts": 2, "context": 2}, 1, (2, 4, 6)),
    ],
)
def test_a_job_may_have_every_number_of_hosts_whose_mesh_divides_the_batch(
    given, devices, wanted, tmp_path
):
    values = {"recipe": "pretrain", "text": "t", "global_batch": 12, **given}
    assert many_hosts.allowed(values, tmp_path, hosts=6, devices_per_host=devices) == wanted


def test_a_stored_run_is_judged_with_its_own_batch(tmp_path):
    settings.create(Pretrain, {"text": "/t", "global_batch": 10}).save(tmp_path)
    values = {"recipe": None, "fewest_hosts": 1}
    assert many_hosts.allowed(values, tmp_path, hosts=5, devices_per_host=1) == (1, 2, 5)
    values["accumulate"] = 2  # an option that this launch changes
    assert many_hosts.allowed(values, tmp_path, hosts=5, devices_per_host=1) == (1, 5)


def test_an_explicit_mesh_fits_one_number_of_hosts(tmp_path):
    values = {"recipe": "pretrain", "text": "t", "global_batch": 12, "fsdp": 3}
    assert many_hosts.allowed(values, tmp_path, hosts=3, devices_per_host=1) == (3,)
    with pytest.raises(ValueError, match=r"leave out --fsdp.*that fit: 3$"):
        many_hosts.allowed(values, tmp_path, hosts=4, devices_per_host=1)


@contextlib.contextmanager
def _held(out):
    """Another process has the run, as a job in its start-up has."""
    hold = "import sys; from dovetail_runs import Run\n"
    hold += "with Run(sys.argv[1]).locked(): print('held', flush=True); sys.stdin.readline()"
    line = [sys.executable, "-c", hold, out]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        yield holder
        holder.communicate(b"\n")


@pytest.mark.parametrize("hosts", ["--hosts 2", "--slurm", "--ray auto"])
def test_a_second_job_is_refused_before_a_host_is_started(hosts, texts, capsys, monkeypatch):
    out = texts.parent / "run"
    monkeypatch.setattr(many_hosts, "Cluster", None)  # a call of it would be a TypeError
    monkeypatch.setattr(many_hosts, "_backend", lambda values: types.SimpleNamespace(count=2))
    line = ["train", "pretrain", "--text", str(texts), "--out", str(out), *hosts.split()]
    with _held(out):
        code = cli.main(line)
    assert code == 1
    assert "a run must have one process at a time, got" in capsys.readouterr().err
    assert not (out / "job.jsonl").exists()


def test_a_second_launch_is_refused_by_the_lock_before_its_settings_are_read(
    texts, capsys, monkeypatch
):
    out = texts.parent / "run"
    monkeypatch.setattr(training, "agreed", None)  # a call of it would be a TypeError
    settings.create(Pretrain, {"text": str(texts), "steps": 9, "global_batch": 4}).save(out)
    before = (out / settings.FILE).read_bytes()
    other = ["train", "continue", "--model", "nowhere", "--text", "nowhere", "--out", str(out)]
    with _held(out):
        for line in (other, ["train", "--out", str(out), "--leave-out", "2:3"]):
            assert cli.main(line) == 1
            assert "a run must have one process at a time, got" in capsys.readouterr().err
        assert (out / settings.FILE).read_bytes() == before


def test_a_second_job_changes_nothing_of_the_first(texts, capsys, monkeypatch):
    out = texts.parent / "run"
    monkeypatch.setattr(many_hosts, "Cluster", None)
    settings.create(Pretrain, {"text": str(texts), "steps": 9, "global_batch": 4}).save(out)
    before = (out / settings.FILE).read_bytes()
    with _held(out):
        assert cli.main(["train", "--out", str(out), "--hosts", "2", "--leave-out", "2:3"]) == 1
        assert "a run must have one process at a time, got" in capsys.readouterr().err
        assert (out / settings.FILE).read_bytes() == before


def test_a_refused_job_leaves_no_lock_in_a_directory_of_others(texts, capsys):
    out = texts.parent / "mine"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    line = ["train", "pretrain", "--text", str(texts), "--out", str(out), "--hosts", "2"]
    assert cli.main([*line, "--global-batch", "4"]) == 2
    assert "a new run needs a directory of its own, got" in capsys.readouterr().err
    assert [file.name for file in out.iterdir()] == ["notes.txt"]


def test_a_killed_job_holds_nothing(texts, capsys, monkeypatch):
    out = texts.parent / "run"
    monkeypatch.setattr(many_hosts, "Cluster", _Started)
    line = ["train", "pretrain", "--text", str(texts), "--out", str(out), "--hosts", "2"]
    with _held(out) as holder:
        holder.kill()
        holder.wait()
        with pytest.raises(_Started):
            cli.main([*line, "--global-batch", "4", "--debug"])


class _Started(Exception):
    """In the place of a cluster: hosts would be started."""

    def __init__(self, *args, **options):
        super().__init__()
        raise self

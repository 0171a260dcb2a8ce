# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Refusals and the command. Their own readers read the files in tests/parity."""

import builtins
import json
import re

import pytest

from dovetail_runs import Run, export


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path / "first")
    with made.launch({"rate": 0.1}) as launch:
        launch.write(0, {"loss": 2.5})
    return made


def test_the_command_writes_event_files(run, command, tmp_path):
    out = tmp_path / "logs"
    code, printed, _ = command("export", run.path, "--to", "tensorboard", "--out", out, "--json")
    assert code == 0
    assert json.loads(printed) == {"directory": str(out)}
    assert len(list(out.glob("events.out.tfevents.*"))) == 1
    code, _, error = command("export", run.path, "--to", "tensorboard", "--out", out)
    assert code == 2
    assert "must be a directory without event files, got" in error


def test_a_run_that_cannot_be_copied_is_refused(run, tmp_path, unchecked):
    for path, to, said in (
        (run.path, "csv", "to must be one of tensorboard, wandb-offline, got to='csv'"),
        (tmp_path / "none", "tensorboard", "a run is a folder with run.json, got"),
    ):
        with pytest.raises(ValueError, match=re.escape(said)):
            export(path, tmp_path / "out", to=to)
    empty = Run(tmp_path / "empty")
    empty.launch().finish()
    with pytest.raises(ValueError, match=r"an export needs metrics, got none in .*empty"):
        export(empty, tmp_path / "out", to="tensorboard")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("to", "package", "extra"),
    [("tensorboard", "tensorboardX", "tensorboard"), ("wandb-offline", "wandb", "wandb")],
)
def test_without_the_extra_the_message_says_what_to_type(
    run, tmp_path, monkeypatch, to, package, extra
):
    real = builtins.__import__

    def without(name, *args, **options):
        if name == package:
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=rf"needs the package {package}.*runs\[{extra}\]'"):
        export(run, tmp_path / "out", to=to)

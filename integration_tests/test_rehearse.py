# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The rehearsal of a release. Building and installing everything is the nightly job's."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import rehearse
import workspace

pytestmark = pytest.mark.once


def git(root: Path, *line: str) -> str:
    done = subprocess.run(["git", "-C", root, *line], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def notebook(file: Path, source: str) -> Path:
    cell = {
        "cell_type": "code",
        "id": "one",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": source,
    }
    content = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
    return file


def test_a_clone_is_tagged_and_the_repository_stays(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    silent = repository / "packages/optim/changes/2.feature.md"
    silent.unlink()
    git(repository, "tag", f"optim-v{workspace.members(repository)['optim'].version}", "HEAD")
    git(repository, "commit", "--quiet", "--all", "--message", "No news of optim")
    before = git(repository, "for-each-ref"), git(repository, "status", "--porcelain")
    rehearsal = rehearse.clone(tmp_path / "rehearsal", repository)
    rehearse.tag(rehearsal)
    assert (git(repository, "for-each-ref"), git(repository, "status", "--porcelain")) == before
    now, then = rehearsal.members(), workspace.members(repository)
    raised = {folder for folder in now if now[folder].version != then[folder].version}
    assert raised == now.keys() - {"optim"}
    tags = set(git(rehearsal.root, "tag").split())
    assert tags == {f"{folder}-v{member.version}" for folder, member in now.items()}
    assert workspace.false_pins(rehearsal.root) == []


def test_a_failing_step_shows_its_command_and_its_output(tmp_path):
    program = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"
    with pytest.raises(rehearse.RehearsalError, match="must succeed; got exit code 7") as error:
        rehearse.call(sys.executable, "-c", program, cwd=tmp_path)
    for words in (sys.executable, "out\nerr\n", "--only NAME"):
        assert words in str(error.value)


def test_a_file_that_is_not_fit_stops_the_rehearsal(tmp_path):
    file = tmp_path / "a-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a-1.0.dist-info/METADATA", "Metadata-Version: 2.4\nName: a\n")
    with pytest.raises(rehearse.RehearsalError, match="must be fit for an index") as error:
        rehearse.check([file])
    assert f"{file.name}: LICENSE must be in it" in str(error.value)
    assert "mend its pyproject.toml" in str(error.value)


def test_notebooks_are_named_or_refused(tmp_path):
    rehearsal = rehearse.Rehearsal(root=tmp_path, dist=tmp_path, work=tmp_path)
    file = notebook(tmp_path / "examples/notebooks/there.ipynb", "1")
    assert rehearse.notebooks(rehearsal, ["there"]) == [file]
    with pytest.raises(rehearse.RehearsalError, match="must be a committed file") as error:
        rehearse.notebooks(rehearsal, ["there", "gone"])
    assert "got ['gone']" in str(error.value)
    assert "--notebooks with names of ['there']" in str(error.value)


def test_the_default_is_everything_on_every_python():
    options = rehearse.parse([])
    assert (options.only, options.python) == (None, (*workspace.PYTHONS, *workspace.NEWER))
    assert len(options.notebooks) == 2


@pytest.mark.slow
def test_a_notebook_runs_and_its_error_is_shown(tmp_path):
    rehearse.call("uv", "venv", "--quiet", tmp_path / "env", "--python", sys.executable)
    python = tmp_path / "env" / "bin" / "python"
    line = ["uv", "pip", "install", "--quiet", "--python", python, "ipykernel", "nbclient"]
    rehearse.call(*line, cwd=tmp_path)
    rehearse.run_notebook(notebook(tmp_path / "good.ipynb", "open('left', 'w').write('x')"), python)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["env", "good.ipynb"]
    with pytest.raises(rehearse.RehearsalError, match="ZeroDivisionError"):
        rehearse.run_notebook(notebook(tmp_path / "bad.ipynb", "1 / 0"), python)

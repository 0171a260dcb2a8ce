# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `dovetail data`: that all of the library's command is there, mounted."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail_data import Corpus
from dovetail_stack import cli

HANG_S = 120  # only a process that never ends takes this long


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in {"a": "hello", "b": "you"}.items():
        (tmp_path / f"{name}.txt").write_text(content)
    return tmp_path


def test_write_inspect_and_plan(capsys):
    assert cli.main(["data", "write", "a.txt", "b.txt", "--out", "corpus"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("corpus: 2 documents, 12 tokens\n")
    assert "tokenize corpus: 100%" in printed.err
    assert cli.main(["data", "inspect", "corpus", "--rows", "1", "--length", "10"]) == 0
    printed = capsys.readouterr()
    assert "⟨<|bos|>⟩⟦hello⟨<|eos|>⟩⟧" in printed.out
    assert printed.err == ""
    line = ["data", "budget", "corpus", "--length", "10", "--global-batch", "2", "--steps", "3"]
    assert cli.main(line) == 0
    assert capsys.readouterr().out.startswith("3 steps of 2 rows\n")


def test_an_error_is_code_1_and_a_wrong_line_2(capsys):
    assert cli.main(["data", "inspect", "nowhere"]) == 2
    assert "dovetail: error: a corpus must be finished" in capsys.readouterr().err
    for line in (["data"], ["data", "write", "a.txt", "--out", "x", "--worker", "2"]):
        with pytest.raises(SystemExit) as stopped:
            cli.main(line)
        assert stopped.value.code == 2
        assert "dovetail data" in capsys.readouterr().err


def test_a_missing_extra_is_one_message(capsys, here, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (here / "tokenizer.json").write_text("{}")
    line = ["data", "write", "a.txt", "--out", "x", "--tokenizer", "tokenizer.json"]
    assert cli.main(line) == 1
    assert "pip install 'dovetail-data[tokenizers]'\n" in capsys.readouterr().err
    with pytest.raises(ImportError, match="pip install"):
        cli.main([*line, "--debug"])


def test_ctrl_c_says_how_to_go_on(capsys, monkeypatch):
    from dovetail_stack.progress import Writing

    def interrupt(self, corpus, progress):
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Writing, "__call__", interrupt)
    assert cli.main(["data", "write", "a.txt", "--out", "corpus"]) == 130
    message = "dovetail: interrupted: finished shards stay, and the same command goes on from them"
    assert message in capsys.readouterr().err


@pytest.mark.thorough
def test_workers(here):
    line = [
        "-m",
        "dovetail_stack",
        "data",
        "write",
        str(here),
        "--out",
        str(here / "c"),
        "--workers",
    ]
    done = subprocess.run([sys.executable, *line, "2"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(Corpus(here / "c")) == 2


@pytest.mark.thorough("processes of several hosts")
@pytest.mark.capability("dovetail data write on many hosts")
def test_hosts_write_the_same_corpus_and_leave_nothing_behind(here):
    """Only the summary is printed to standard output. The local Ray is gone afterwards."""
    pytest.importorskip("ray", reason="Ray has no wheel for this Python")
    mark = f"DOVETAIL_TEST_OF={here}"
    line = [sys.executable, "-m", "dovetail_stack", "data", "write", "a.txt", "b.txt", "--out"]
    marked = {**os.environ, "DOVETAIL_TEST_OF": str(here)}
    one = subprocess.check_output([*line, "one"], stderr=subprocess.DEVNULL, text=True)
    many = subprocess.run(
        [*line, "many", "--hosts", "1"], capture_output=True, text=True, env=marked, check=False
    )
    assert (many.returncode, many.stdout) == (0, one.replace("one", "many", 1)), many.stderr
    bars = [text for text in re.split(r"[\r\n]", many.stderr) if text.strip()]
    assert all(text.startswith("tokenize many: ") for text in bars)
    files = {path.name: path.read_bytes() for path in (here / "one").iterdir()}
    assert {path.name: path.read_bytes() for path in (here / "many").iterdir()} == files
    for process in processes_with(mark):
        assert select.select([process], [], [], HANG_S)[0]
        os.close(process)


def processes_with(variable: str) -> list[int]:
    """Descriptors of the living processes that have this environment variable."""
    descriptors = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # another user's, or it has just ended
            if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                descriptors.append(os.pidfd_open(int(folder.name)))
    return descriptors


def test_options_of_hosts_are_named_as_typed(capsys):
    line = ["data", "write", "a.txt", "--out", "corpus"]
    assert cli.main([*line, "--ray", "auto"]) == 2
    message = "--ray must come with the number of workers there: got --ray 'auto' and no --hosts."
    assert f"{message} Pass --hosts too.\n" in capsys.readouterr().err
    assert cli.main([*line, "--hosts", "2", "--workers", "2"]) == 2
    message = "--workers must be 1 beside workers of Ray: got --workers 2 and --hosts 2. Leave"
    assert message in capsys.readouterr().err


def test_a_pipe_that_is_closed_is_no_error(here):
    assert cli.main(["data", "write", "a.txt", "--out", "corpus"]) == 0
    reader, writer = os.pipe()
    os.close(reader)
    pipes = {"stdout": writer, "stderr": subprocess.PIPE}
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    line = [sys.executable, "-m", "dovetail_stack", "data", "inspect", "corpus"]
    piped = subprocess.run(line, **pipes, env=buffered, check=False)
    os.close(writer)
    assert (piped.returncode, piped.stderr) == (1, b"")


def test_help_of_an_action(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["data", "budget", "--help"])
    assert stopped.value.code == 0
    assert "usage: dovetail data budget" in capsys.readouterr().out

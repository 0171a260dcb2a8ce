# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `dovetail data`: that all of the library's command is there, mounted."""

import os
import signal
import subprocess
import sys

import pytest

from dovetail_data import Corpus
from dovetail_stack import cli


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
    assert cli.main(["data", "inspect", "nowhere"]) == 1
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

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the command prints and how it exits."""

import json
import os
import subprocess
import sys

import pytest

from dovetail_data import Corpus
from dovetail_data.command import cli

pytestmark = pytest.mark.usefixtures("here")

TEXTS = ["hé\n", "lorem ipsum", "", "日本"]
IDS = [[256, *text.encode(), 257] for text in TEXTS if text]
RECORDS = [{"text": text} for text in TEXTS]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)


@pytest.fixture
def corpus(here, command):
    """`corpus` in the current directory: three documents of TEXTS, one record dropped."""
    (here / "in.jsonl").write_text(LINES)
    assert command("write", "in.jsonl", "--out", "corpus")[0] == 0
    return Corpus("corpus")


def ids(directory):
    corpus = Corpus(directory)
    return [corpus[i]["tokens"].tolist() for i in range(len(corpus))]


def test_records_that_were_dropped_are_shown(corpus):
    assert repr(corpus).endswith("fields=['tokens'], dropped=1)")


def test_a_plan(corpus, here, command):
    (here / "two.jsonl").write_text(LINES * 4)
    assert command("write", "two.jsonl", "--out", "two")[0] == 0
    # Documents of 5, 12 and 7 pairs, in rows of 16: 12, and 5 + 7; 2 rows, and 8 rows.
    line = (
        *("budget", "corpus", "--name", "big=two", "--weights", "corpus=0.25", "big=0.75"),
        *("--length", "16", "--global-batch", "4", "--steps", "5"),
    )
    code, out, err = command(*line)
    assert (code, err) == (0, "")
    table = [line.split() for line in out.splitlines()]
    assert table[0] == ["5", "steps", "of", "4", "rows"]
    assert table[2] == ["big", "15", "1.875", "180", "75.0%"]
    assert table[3] == ["corpus", "5", "2.500", "60", "25.0%"]
    assert table[4] == ["all", "20", "240", "100.0%"]
    _, out, _ = command(*line, "--exhausted", "drop")  # two epochs of each
    assert [line.split()[:2] for line in out.splitlines()[2:4]] == [["big", "16"], ["corpus", "4"]]


def test_a_plan_of_one_corpus_as_json(corpus, command):
    line = ["budget", "corpus", "--length", "16", "--global-batch", "3", "--steps", "4"]
    report = json.loads(command(*line, "--json")[1])
    source = {"name": "corpus", "rows": 12, "epochs": 6.0, "tokens": 144.0, "share": 1.0}
    assert report == {
        "steps": 4,
        "global_batch": 3,
        "sources": [source],
        "rows": 12,
        "tokens": 144.0,
    }
    code, _, err = command(*line, "--exhausted", "stop", "--weights", "other=1")
    assert (code, err.startswith("error: --weights must name each corpus")) == (2, True)


@pytest.mark.parametrize(
    "argv, message",
    [
        (
            ["write", "nowhere", "--out", "x"],
            "error: a path must exist: got nowhere. Correct its spelling.",
        ),
        (["write", "mixed", "--out", "x"], "got 1 .jsonl, 2 .txt in mixed. Pass --format"),
        (["write", "odd", "--out", "x"], "got 1 .md, 1 named 'Makefile' in odd. Pass --format"),
        (["write", "odd/a.md", "--out", "x"], "got 1 .md in odd/a.md. Pass --format"),
        (["write", "odd/a.md", "in.jsonl", "--out", "x"], "got 1 .jsonl, 1 .md in odd/a.md, in"),
        (["write", "odd", "--pattern", "*.rs", "--out", "x"], "got no file in odd. Pass --format"),
        (["write", "both", "--pattern", "*", "--out", "x"], "got 1 .md, 1 .txt in both. Pass"),
        (["write", "odd", "--pattern", "*", "--out", "x"], "got 1 .md, 1 named 'Makefile' in odd"),
        (
            ["write", "in.jsonl", "mixed", "--format", "hf", "--out", "x"],
            "error: a data set must be one directory, without --pattern: got PATH ['in.jsonl', "
            "'mixed'], no --pattern. Pass --format parquet",
        ),
        (
            ["write", "in.jsonl", "--split", "a", "--format", "jsonl", "--out", "x"],
            "error: --split must be of a data set: got --split a with --format jsonl. Pass",
        ),
        (
            ["write", "in.jsonl", "--out", "x", "--train-on", "all"],
            "error: --train-on must be for an encoder that takes it: got --encoder text. Leave it "
            "out, or pass --encoder chat.",
        ),
        (
            ["write", "in.jsonl", "--out", "x", "--encoder", "preference", "--field", "a"],
            "--field must be for an encoder that takes it: got --encoder preference. Leave it out, "
            "or pass --encoder text or chat or prompt or image.",
        ),
        (
            ["write", "in.jsonl", "--out", "x", "--encoder", "image", "--tokenizer", "bytes"],
            "error: --tokenizer must be for an encoder that takes it: got --encoder image.",
        ),
        (
            ["write", "in.jsonl", "--out", "x", "--encoder", "chat"],
            "error: chats must have a template: got --encoder chat without --template. Pass the",
        ),
        (["write", "in.jsonl", "--out", "x", "--workers", "0"], "error: --workers must be >= 1"),
        (["write", "in.jsonl", "--out", "x", "--tokenizer", "y"], "error: a tokenizer must exist"),
        (
            ["write", "two.jsonl", "--out", "corpus"],
            "corpus must be continued with the same",
        ),
        (["inspect", "nowhere"], "error: a corpus must be finished: got DIR nowhere"),
        (
            ["inspect", "corpus", "--row", "1"],
            "error: --row must be in [0, 1): got --row 1. Leave --row and --rows out",
        ),
        (["inspect", "corpus", "--row", "-1"], "error: --row must be in [0, 1): got --row -1."),
        (
            ["inspect", "corpus", "--html", "p.html"],
            "error: a page must have rows: got --html p.html alone. Pass --rows 20 too.",
        ),
        (["inspect", "corpus", "--length", "0"], "error: --length must be >= 1: got --length 0."),
        (
            ["budget", "corpus", "corpus", "--steps", "1", "--global-batch", "1"],
            "error: corpora must have names of their own: got 'corpus' twice. Pass --name",
        ),
        (
            ["budget", "corpus", "--steps", "1", "--global-batch", "1", "--weights", "corpus"],
            "error: a name must have a value: got 'corpus'. Write NAME=VALUE.",
        ),
        (
            ["budget", "corpus", "--steps", "1", "--global-batch", "1", "--weights", "corpus=x"],
            "error: a weight must be a number: got corpus=x. Write corpus=0.5.",
        ),
        (
            ["budget", "corpus", "--steps", "0", "--global-batch", "1"],
            "error: --steps must be >= 1",
        ),
        (
            ["budget", "--steps", "1", "--global-batch", "1"],
            "error: a budget must have a corpus: got none. Pass DIR, or --name NAME=DIR.",
        ),
        (
            ["budget", "corpus", "--name", "b=corpus", "--steps", "1", "--global-batch", "1"],
            "error: --weights must name each corpus, corpus, b: got none. Type --weights "
            "corpus=0.5 b=0.5.",
        ),
        (
            [
                *("budget", "corpus", "--name", "b=corpus", "--steps", "1", "--global-batch", "1"),
                *("--weights", "corpus=3", "c=1"),
            ],
            "corpus, b: got corpus, c. Type --weights corpus=3 b=0.5.",
        ),
    ],
)
def test_what_cannot_be_done_is_one_message(corpus, here, command, argv, message):
    for name in (
        "mixed/a.txt",
        "mixed/b.txt",
        "mixed/c.jsonl",
        "odd/a.md",
        "odd/Makefile",
        "both/a.md",
        "both/b.txt",
    ):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text("{}")
    (here / "two.jsonl").write_text(LINES * 2)
    code, out, err = command(*argv)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("error: ")
    assert not (here / "x" / "index.json").exists()
    with pytest.raises(ValueError):  # noqa: PT011  (the message is above, in the command's words)
        cli.main([*argv, "--debug"])


def test_a_missing_extra_says_which(here, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (here / "tokenizer.json").write_text("{}")
    (here / "in.txt").write_text("x")
    code, _, err = command("write", "in.txt", "--out", "x", "--tokenizer", "tokenizer.json")
    assert code == 1
    assert "pip install 'dovetail-data[tokenizers]'" in err


@pytest.mark.parametrize(
    "argv", [[], ["write", "x"], ["write", "--out", "x"], ["inspect"], ["budget"], ["wirte"]]
)
def test_a_wrong_line_is_code_2(command, argv):
    code, out, err = command(*argv)
    assert (code, out) == (2, "")
    assert err.splitlines()[1].startswith("help: python -m dovetail_data")


def test_help(command):
    for argv, expected in (
        (["--help"], "Count the rows, epochs and tokens that a run takes"),
        (["write", "--help"], "number of processes that encode (1)"),
        (["inspect", "--help"], "exit codes:"),
    ):
        code, out, _ = command(*argv)
        assert (code, expected in out) == (0, True)


@pytest.mark.thorough
def test_the_module_with_workers_and_a_pipe_that_is_closed(here, corpus):
    module = [sys.executable, "-m", "dovetail_data"]
    line = ["write", "in.jsonl", "--workers", "2", "--out", "out"]
    done = subprocess.run([*module, *line], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert ids("out") == IDS
    reader, writer = os.pipe()
    os.close(reader)
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    pipes = {"stdout": writer, "stderr": subprocess.PIPE}
    piped = subprocess.run([*module, "inspect", "corpus"], **pipes, env=buffered)
    os.close(writer)
    assert (piped.returncode, piped.stderr) == (1, b"")


def test_importing_it_takes_nothing_that_is_optional_or_slow():
    others = {"jax", "grain", "pyarrow", "jinja2", "PIL", "zstandard", "tokenizers"}
    program = f"import sys, dovetail_data.command.cli; print(sorted({others} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")

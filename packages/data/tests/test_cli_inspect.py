# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The action `inspect`: what it prints of a corpus and of its rows."""

import io
import json
import subprocess
import sys

import PIL.Image
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from dovetail_data import Corpus

pytestmark = pytest.mark.usefixtures("here")

TEXTS = ["hé\n", "lorem ipsum", "", "日本"]
RECORDS = [{"text": text} for text in TEXTS]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)


@pytest.fixture
def corpus(here, command):
    """`corpus` in the current directory: three documents of TEXTS, one record dropped."""
    (here / "in.jsonl").write_text(LINES)
    assert command("write", "in.jsonl", "--out", "corpus")[0] == 0
    return Corpus("corpus")


def shown(command, *options):
    code, out, err = command("inspect", "out", "--rows", "9", *options)
    assert (code, err) == (0, "")
    return [line.strip() for line in out.splitlines()]


def test_images(here, command):
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (4, 2), (250, 0, 0)).save(buffer, "PNG")
    table = {"picture": [buffer.getvalue()], "label": [3]}
    pq.write_table(pa.table(table), here / "in.parquet")
    line = ["write", "in.parquet", "--out", "out", "--encoder", "image", "--field", "picture"]
    code, out, _ = command(*line)
    assert (code, out.splitlines()[0]) == (0, "out: 1 documents")
    assert shown(command)[0] == "row 0: image uint8[2, 4, 3], label 3"
    assert command("inspect", "out")[1] == out
    assert command("inspect", "out", "--rows", "1", "--html", "page.html")[1] == "page.html\n"
    assert 'src="data:image/png;base64,' in (here / "page.html").read_text()
    code, out, _ = command("inspect", "out", "--rows", "1", "--json")
    assert json.loads(out)["rows"][0]["png"].startswith("PNG of ")


def test_inspect(corpus, command):
    code, out, err = command("inspect", "corpus", "--length", "8")
    assert (code, err) == (0, "")
    # 6, 13 and 8 ids: 5, 8 + 4 and 7 pairs, of which no two fit in one row.
    assert out.endswith(
        "  corrupt: 0 (records left out)\n"
        "ids of a document\n"
        "  quantiles: 0% 6, 5% 6, 25% 6, 50% 8, 75% 13, 95% 13, 100% 13\n"
        "   4 to 7  1  ####################\n"
        "  8 to 15  2  ########################################\n"
        "best_fit at length 8: 4 rows, fill 0.7500\n"
    )
    report = json.loads(command("inspect", "corpus", "--method", "concat", "--json")[1])
    assert report["packing"] == {"method": "concat", "length": 2048, "rows": 1, "fill": 24 / 2048}
    _, out, _ = command("inspect", "corpus", "--method", "concat", "--length", "8")
    assert out.endswith("concat at length 8: 3 rows, fill 1.0000\n")
    assert report["lengths"]["quantiles"]["0.5"] == 8
    assert report["lengths"]["histogram"] == [
        {"from": 4, "below": 8, "documents": 1},
        {"from": 8, "below": 16, "documents": 2},
    ]


def test_rows(corpus, command):
    line = ["inspect", "corpus", "--length", "12", "--seed", "1"]
    every = command(*line, "--rows", "99")[1]
    rows = every.split("\n\n")
    assert "⟨<|bos|>⟩⟦hé↵\n    ⟨<|eos|>⟩⟧" in every
    assert len(rows) == 2
    assert command(*line, "--row", "1")[1] == rows[1]
    assert command(*line, "--row", "1", "0")[1].split("\n\n")[1] == rows[0].rstrip("\n") + "\n"
    orders = {command(*line[:-1], seed, "--rows", "2")[1] for seed in range(6)}
    assert len(orders) == 2
    assert "⟦l│o│r│e│m" in command(*line, "--rows", "2", "--tokens")[1]
    report = json.loads(command(*line, "--row", "1", "--json")[1])["rows"]
    assert [row["row"] for row in report] == [1]
    assert report[0]["passages"][0]["pieces"][0]["text"] == "<|bos|>"


def test_colors(corpus, command, monkeypatch):
    line = ["inspect", "corpus", "--rows", "1"]
    terminal = lambda: monkeypatch.setattr(sys.stdout, "isatty", lambda: True)  # noqa: E731
    assert "\x1b[" not in command(*line)[1]
    assert "\x1b[32m" in command(*line, "--color", "always")[1]
    terminal()
    assert "\x1b[32m" in command(*line)[1]
    terminal()
    assert "\x1b[" not in command(*line, "--color", "never")[1]
    monkeypatch.setenv("NO_COLOR", "1")
    terminal()
    assert "\x1b[" not in command(*line)[1]
    assert "\x1b[32m" in command(*line, "--color", "always")[1]
    monkeypatch.setenv("NO_COLOR", "")
    terminal()
    assert "\x1b[32m" in command(*line)[1]


def test_a_page_and_another_tokenizer(corpus, here, command, bpe):
    (here / "tokenizer.json").write_text(bpe.content)
    line = ["inspect", "corpus", "--rows", "1", "--html", "page.html"]
    assert command(*line) == (0, "page.html\n", "")
    assert ">m</span>" in (here / "page.html").read_text()
    assert "<h1>corpus</h1>" in (here / "page.html").read_text()
    assert command(*line, "--tokenizer", "tokenizer.json")[0] == 0
    assert f">{bpe.decode([ord('m')])}</span>" in (here / "page.html").read_text()


@pytest.mark.thorough
def test_characters_that_a_stream_cannot_hold_are_escaped(corpus):
    program = [sys.executable, "-m", "dovetail_data", "inspect", "corpus", "--rows", "1"]
    environment = {"PYTHONIOENCODING": "ascii", "PATH": ""}
    done = subprocess.run(program, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "h\\xe9\\u21b5" in done.stdout

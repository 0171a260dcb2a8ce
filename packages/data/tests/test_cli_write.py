# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The action `write`: what it reads, what it prints, and that it goes on."""

import gzip
import hashlib
import io
import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from dovetail_data import Corpus
from dovetail_data.command import cli

pytestmark = pytest.mark.usefixtures("here")

TEXTS = ["hé\n", "lorem ipsum", "", "日本"]
IDS = [[256, *text.encode(), 257] for text in TEXTS if text]
RECORDS = [{"text": text} for text in TEXTS]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)


CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}"
    "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)


MASKED = "⟨<|bos|>⟩[user]a[assistant]⟦b⟨<|eos|>⟩⟧"


@pytest.fixture
def corpus(here, command):
    """`corpus` in the current directory: three documents of TEXTS, one record dropped."""
    (here / "in.jsonl").write_text(LINES)
    assert command("write", "in.jsonl", "--out", "corpus")[0] == 0
    return Corpus("corpus")


def ids(directory):
    corpus = Corpus(directory)
    return [corpus[i]["tokens"].tolist() for i in range(len(corpus))]


def put_texts(folder):
    for i, text in enumerate(TEXTS):
        (folder / f"{i}.txt").write_text(text)


def put_jsonl(folder):
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(LINES.encode()))


def put_ndjson(folder):
    (folder / "a.ndjson").write_text(LINES)


def put_parquet(folder):
    pq.write_table(pa.Table.from_pylist(RECORDS), folder / "train-00000-of-00001.parquet")
    other = pa.Table.from_pylist([{"text": "held out"}])
    pq.write_table(other, folder / "test-00000-of-00001.parquet")


def put_arrow(folder):
    table = pa.Table.from_pylist(RECORDS)
    with pyarrow.ipc.new_stream(str(folder / "a.arrow"), table.schema) as writer:
        writer.write_table(table)


def put_saved(folder):
    put_arrow(folder)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "a.arrow"}]}))


def put_array_record(folder):
    writer = ArrayRecordWriter(str(folder / "a.array_record"), "group_size:1")
    for record in RECORDS:
        writer.write(json.dumps(record).encode())
    writer.close()


PUT = [put_texts, put_jsonl, put_ndjson, put_parquet, put_arrow, put_saved, put_array_record]


@pytest.mark.parametrize("put", PUT, ids=lambda put: put.__name__)
@pytest.mark.parametrize("whole", [True, False], ids=["directory", "files"])
def test_the_format_is_guessed_from_names(put, whole, here, command):
    (here / "in").mkdir()
    put(here / "in")
    (here / "in" / "README.md").write_text("passed over")
    wanted = (".txt", ".gz", ".ndjson", ".parquet", ".arrow", ".array_record")
    files = sorted(path for path in (here / "in").iterdir() if path.suffix in wanted)
    paths = [path for path in files if not path.name.startswith("test")]
    code, out, err = command("write", *(["in"] if whole else paths), "--out", "out")
    assert code == 0
    assert ids("out") == IDS
    assert (out.splitlines()[0], err) == ("out: 3 documents, 27 tokens", "")
    assert ("  split: train\n" in out) == (whole and put in (put_parquet, put_saved))


def test_a_field(here, command):
    (here / "in.jsonl").write_text('{"text": "a", "body": "b"}')
    assert command("write", "in.jsonl", "--out", "out", "--field", "body")[0] == 0
    assert ids("out") == [[256, *b"b", 257]]


def test_a_split(here, command):
    (here / "in").mkdir()
    put_parquet(here / "in")
    assert command("write", "in", "--out", "out", "--split", "test")[0] == 0
    assert ids("out") == [[256, *b"held out", 257]]


def test_a_format_and_a_pattern(here, command):
    (here / "in").mkdir()
    (here / "in" / "a.md").write_text("x")
    (here / "in" / "b.rst").write_text("y")
    line = ["write", "in", "--out", "out", "--format", "text", "--pattern", "*.md"]
    assert command(*line)[0] == 0
    assert ids("out") == [[256, *b"x", 257]]


def test_the_summary(corpus, command):
    code, out, err = command("write", "in.jsonl", "--out", "corpus")
    size = sum(path.stat().st_size for path in corpus.directory.iterdir())
    assert (code, err) == (0, "")
    # 4 + 11 + 6 bytes of text, and 3 times bos and eos
    assert out == (
        "corpus: 3 documents, 27 tokens\n"
        "  encoder: text\n"
        "  field: text\n"
        "  tokenizer: bytes/1\n"
        "  fields: tokens\n"
        f"  fingerprint: {corpus.fingerprint}\n"
        f"  on disk: {size:,} bytes, shards: 1\n"
        "  text: 21 bytes, 0.78 a token\n"
        "  dropped: 1 (records of which nothing is learnt)\n"
        "  corrupt: 0 (records left out)\n"
    )
    report = json.loads(command("write", "in.jsonl", "--out", "corpus", "--json")[1])
    assert (report["documents"], report["dropped"], report["disk_bytes"]) == (3, 1, size)


def test_corrupt_records_within_a_budget_are_listed(here, command):
    (here / "i\x1bn.jsonl").write_text(LINES + '{"text": 1}\n{\n' + LINES)
    line = ["write", "i\x1bn.jsonl", "--out", "out"]
    code, out, err = command(*line, "--max-corrupt", "1")
    assert (code, out) == (3, "")
    assert err.startswith("error: at most --max-corrupt 1 records may be corrupt: got 2 so far:\n")
    assert "\n  i␛n.jsonl:5: a record must have" in err
    code, out, err = command(*line, "--max-corrupt", "2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[-3] == "  corrupt: 2 (records left out)"
    assert lines[-2].startswith("    i␛n.jsonl:5: a record must have a string under field='text'")
    assert lines[-1].startswith("    i␛n.jsonl:6: ")
    report = json.loads(command("inspect", "out", "--json")[1])["corrupt"]
    assert [record["where"] for record in report] == ["i\x1bn.jsonl:5", "i\x1bn.jsonl:6"]


def test_a_long_list_of_corrupt_records_is_cut(here, command):
    (here / "in.jsonl").write_text("[]\n" * 23 + LINES)
    _, out, _ = command("write", "in.jsonl", "--out", "out", "--max-corrupt", "23")
    lines = out.splitlines()
    assert lines[-1] == "    and 3 more: --json lists all"
    assert sum(line.startswith("    in.jsonl:") for line in lines) == 20


def chat_lines(here):
    (here / "in.jsonl").write_text(json.dumps(CHAT))
    (here / "chat.jinja").write_text(TEMPLATE)
    return ["write", "in.jsonl", "--out", "out", "--encoder", "chat", "--template", "chat.jinja"]


def shown(command, *options):
    code, out, err = command("inspect", "out", "--rows", "9", *options)
    assert (code, err) == (0, "")
    return [line.strip() for line in out.splitlines()]


def test_a_chat(here, command):
    assert command(*chat_lines(here))[0] == 0
    assert MASKED in shown(command)
    lines = chat_lines(here)
    lines[3] = "all"
    assert command(*lines, "--train-on", "all")[0] == 0
    assert Corpus("all").manifest["train_on"] == "all"


def test_a_key_that_the_template_does_not_read(here, command):
    lines = chat_lines(here)
    row = json.loads((here / "in.jsonl").read_text().splitlines()[0])
    row["messages"][-1]["mood"] = "glad"
    (here / "in.jsonl").write_text(json.dumps(row) + "\n")
    code, _, err = command(*lines)
    assert code == 3
    assert "got 'mood' in message" in err
    assert "pass --ignore-keys mood" in err
    lines[3] = "without"
    assert command(*lines, "--ignore-keys", "mood")[0] == 0
    assert Corpus("without").manifest["ignore_keys"] == ["mood"]


def test_bos_and_eos_of_a_model(here, command, bpe):
    """Its tokenizer_config.json names them; here others than the usual ones."""
    (here / "model").mkdir()
    content = json.loads(bpe.content)
    for token in content["added_tokens"]:
        token["content"] = token["content"].replace("|>", "0|>")
    vocabulary = content["model"]["vocab"]
    for name in ("<|bos|>", "<|eos|>"):
        vocabulary[name.replace("|>", "0|>")] = vocabulary.pop(name)
    content["post_processor"] = None
    (here / "model" / "tokenizer.json").write_text(json.dumps(content))
    config = {"bos_token": "<|bos0|>", "eos_token": "<|eos0|>"}
    (here / "model" / "tokenizer_config.json").write_text(json.dumps(config))
    (here / "model" / "chat_template.jinja").write_text(TEMPLATE)
    line = chat_lines(here)[:-1]
    assert command(*line, "model", "--tokenizer", "model")[0] == 0
    assert MASKED.replace("s|>", "s0|>") in shown(command)
    # A template from elsewhere writes bos by its name, though this tokenizer puts none.
    line[line.index("out")] = "other"
    assert command(*line, "chat.jinja", "--tokenizer", "model")[0] == 0
    assert MASKED.replace("s|>", "s0|>") in command("inspect", "other", "--rows", "9")[1]


def test_the_template_of_a_model_comes_with_its_own_tokens(here, command):
    line = chat_lines(here)
    config = {"bos_token": None, "eos_token": "[end]"}
    (here / "tokenizer_config.json").write_text(json.dumps(config))
    assert command(*line)[0] == 0
    assert "[user]a[assistant]⟦b[end]⟧" in shown(command)


def test_preferences_and_prompts_of_chats(here, command):
    (asked, answer) = CHAT["messages"]
    record = {"prompt": [asked], "chosen": [answer], "rejected": [{**answer, "content": "c"}]}
    prompted = TEMPLATE + "{% if add_generation_prompt %}[assistant]{% endif %}"
    (here / "in.jsonl").write_text(json.dumps(record))
    (here / "chat.jinja").write_text(prompted)
    line = ["write", "in.jsonl", "--template", "chat.jinja", "--out", "out", "--encoder"]
    assert command(*line, "preference")[0] == 0
    lines = shown(command)
    assert MASKED in lines
    assert MASKED.replace("b⟨", "c⟨") in lines
    line[5] = "prompts"
    assert command(*line, "prompt")[0] == 0
    assert "    ⟨<|bos|>⟩[user]a[assistant]\n" in command("inspect", "prompts", "--rows", "1")[1]


def test_preferences_and_prompts(here, command):
    record = {"prompt": "2+2?", "chosen": "4", "rejected": "5"}
    (here / "in.jsonl").write_text(json.dumps(record))
    assert command("write", "in.jsonl", "--out", "out", "--encoder", "preference")[0] == 0
    lines = shown(command)
    assert lines[0] == "row 0: 12 of 12 slots filled, 4 learnt"
    assert "⟨<|bos|>⟩2+2?⟦4⟨<|eos|>⟩⟧" in lines
    assert "⟨<|bos|>⟩2+2?⟦5⟨<|eos|>⟩⟧" in lines
    code, _, err = command("inspect", "out", "--length", "5")
    assert (code, "of 6 slots, --length 5" in err) == (2, True)
    line = ["write", "in.jsonl", "--encoder", "prompt", "--out", "prompts", "--field", "chosen"]
    assert command(*line)[0] == 0
    _, out, _ = command("inspect", "prompts", "--rows", "1", "--length", "3")
    assert "⟨<|bos|>⟩4\n" in out
    assert '"prompt": "2+2?"' in out
    assert out.endswith("  empty: 1 of 3 slots\n")


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_progress_is_one_line_of_a_terminal(here, command, monkeypatch, stream):
    for i in range(3):
        (here / f"{i}.txt").write_text("x" * 1_500_000)
    monkeypatch.setattr(sys, "stderr", stream)
    assert cli.main(["write", ".", "--out", "out"]) == 0
    if stream.isatty():
        first, second, blank, rest = stream.getvalue().split("\r")[1:]
        assert first == "write: 2 of 4 MB, 1 documents, 1,500,002 tokens"
        assert second == "write: 3 of 4 MB, 2 documents, 3,000,004 tokens"
        assert (blank, rest) == (" " * len(second), "")
    else:
        assert stream.getvalue() == ""


def digests(directory):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()
    }


INTERRUPTED = """
import os, signal, sys
from dovetail_data.command import cli
seen = []
class Line(cli._Line):
    def __call__(self, done):
        seen.append(done)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGINT)
cli._Line = Line
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.thorough
def test_an_interrupted_write_goes_on(here, command):
    (here / "in").mkdir()
    for i in range(4):
        (here / "in" / f"{i}.txt").write_text(chr(97 + i) * 1_100_000)
    line = ["write", "in", "--shard-bytes", "1", "--out"]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *line, "broken"], capture_output=True, text=True
    )
    assert done.returncode == 130
    assert done.stderr == (
        "\ninterrupted: finished shards stay, and the same command goes on from them\n"
    )
    assert (here / "broken" / "00000.array_record").exists()
    assert not (here / "broken" / "index.json").exists()
    assert command(*line, "broken")[0] == 0
    assert command(*line, "whole")[0] == 0
    assert digests(here / "broken") == digests(here / "whole")

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 1B in small: a tokenizer with one id more than the model has rows."""

import json
import shutil

import pytest

from dovetail_data import Pretrained
from dovetail_data.writing.write import CorruptInputError
from dovetail_stack import cli
from dovetail_stack.recipes.text import encode

ROWS, WORD = 320, "<image_soft_token>"


@pytest.fixture(scope="module")
def larger(source, tmp_path_factory):
    """A copy of a directory of 320 rows whose tokenizer has one token more, an ordinary word."""
    directory = tmp_path_factory.mktemp("larger") / "hf"
    shutil.copytree(source, directory)
    content = json.loads((directory / "tokenizer.json").read_text())
    added = {**content["added_tokens"][0], "id": ROWS, "content": WORD, "special": False}
    content["added_tokens"].append(added)
    (directory / "tokenizer.json").write_text(json.dumps(content))
    assert Pretrained(directory).vocab_size == ROWS + 1
    return directory


def test_a_text_with_such_an_id_is_refused_by_its_file(larger, tmp_path):
    for name, words in (("a", "import json"), ("b", f"see {WORD}")):
        (tmp_path / name).write_text(words)
    a, b = tmp_path / "a", tmp_path / "b"
    with pytest.raises(CorruptInputError, match=rf"  b: .*got id {ROWS} \('{WORD}'\) in tokens"):
        encode([a], [b], tmp_path / "out", tokenizer=Pretrained(larger), vocab_size=ROWS)
    corpora = encode([a], [a], tmp_path / "fine", tokenizer=Pretrained(larger), vocab_size=ROWS)
    assert corpora.train.codec.layout["tokens"].vocab_size == ROWS


@pytest.mark.thorough("it compiles an engine")
def test_a_prompt_with_such_an_id_is_refused(larger, tmp_path, capsys):
    line = ["generate", str(larger), "--max-tokens", "2"]
    assert cli.main([*line, "--prompt", "def "]) == 0
    capsys.readouterr()
    assert cli.main([*line, "--prompt", f"def {WORD}"]) == 3
    wrong = f"must have ids below the model's {ROWS} rows, got id {ROWS} ({WORD!r}): leave it out"
    assert f"--prompt {wrong}" in capsys.readouterr().err
    (tmp_path / "in.jsonl").write_text(f'{{"prompt": "a"}}\n{{"prompt": "{WORD}"}}\n')
    files = ["--prompts", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "out.jsonl")]
    assert cli.main([*line, *files]) == 3
    assert f"line 2 of the prompts {wrong}" in capsys.readouterr().err
    assert (tmp_path / "out.jsonl").read_bytes() == b""


@pytest.mark.thorough("it trains")
def test_training_takes_such_a_tokenizer_and_refuses_the_id(larger, files, tmp_path, capsys):
    line = ["train", "continue", "--model", str(larger), "--steps", "2"]
    line += ["--length", "24", "--global-batch", "2", "--pattern", "*.py"]
    assert cli.main([*line, "--text", str(files[0]), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    folder = tmp_path / "text"
    folder.mkdir()
    for i in range(9):
        (folder / f"{i}.py").write_text(f"x = {i}\n" * 20 + (f"# {WORD}\n" if i == 4 else ""))
    assert cli.main([*line, "--text", str(folder), "--out", str(tmp_path / "other")]) == 3
    error = capsys.readouterr().err
    assert f"got id {ROWS} ({WORD!r}) in tokens" in error
    assert "4.py" in error

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`--check` refuses what a run refuses, in the same words and with the same exit code."""

import json

import pytest

from dovetail_stack import cli

BASE = ("--length", "32", "--steps", "2", "--held-out", "0.2")
# Of each kind of refusal a case: settings, devices, batch, loss, template, records.
REFUSED = {
    "a batch of half a pair": ("prefer", "--global-batch", "3"),
    "rewards of half a pair": ("reward", "--global-batch", "5"),
    "microbatches of half a pair": ("prefer", "--global-batch", "4", "--accumulate", "4"),
    "aot in microbatches": ("prefer", "--kind", "aot", "--accumulate", "2"),
    "kto in microbatches": ("prefer", "--loss", "kto", "--accumulate", "2"),
    "kto with one pair": ("prefer", "--loss", "kto", "--global-batch", "2"),
    "an unknown kind": ("prefer", "--kind", "best"),
    "smoothing without its kind": ("prefer", "--kind", "ipo", "--label-smoothing", "0.1"),
    "smoothing out of range": ("prefer", "--label-smoothing", "0.7"),
    "a kind of another loss": ("prefer", "--loss", "orpo", "--kind", "ipo"),
    "rows in parts": ("chat", "--global-batch", "3", "--accumulate", "2"),
    "absent devices": ("chat", "--data", "3", "--global-batch", "6"),
    "absent tensor devices": ("chat", "--tensor", "2"),
    "slices of one device": ("chat", "--dcn", "data=2"),
    "a guard below 0": ("chat", "--guard-sigma", "-1"),
    "an average of 2": ("chat", "--ema", "2"),
    "more positions than the model": ("chat", "--length", "999"),
    "shorter rows than a record": ("chat", "--length", "4"),
    "a template that is absent": ("chat", "--template", "no.jinja"),
    "a key that is trained": ("chat", "--ignore-keys", "content"),
    "json columns of lines": ("chat", "--json-columns", "messages"),
    "a margin that is absent": ("reward", "--margin", "no"),
    "another folder": ("chat", "--out", "full"),
    "a model's folder": ("chat", "--out", "model"),
}


@pytest.fixture
def outcome(capsys, monkeypatch, tmp_path, talker, chats, preferred):
    """A function of a recipe and its options: the exit code and the lines of errors."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "model").symlink_to(talker)
    monkeypatch.chdir(tmp_path)

    def of(recipe, *options):
        records = chats if recipe == "chat" else preferred
        code = cli.main(
            ["train", recipe, "--model", str(talker), "--records", str(records), *BASE]
            + ([] if "--global-batch" in options else ["--global-batch", "4"])
            + list(options)
        )
        lines = capsys.readouterr().err.splitlines()
        starts = [i for i, line in enumerate(lines) if "error: " in line]
        return code, lines[starts[0] :] if starts else []

    return of


@pytest.mark.parametrize("name", REFUSED)
def test_a_check_says_what_the_run_says(name, outcome, tmp_path):
    options = REFUSED[name]
    own = () if "--out" in options else ("--out", str(tmp_path / "run"))
    code, said = outcome(*options, *own)
    assert code in (2, 3)
    assert said
    before = sorted(tmp_path.iterdir())
    assert outcome(*options, "--check") == (code, said)
    assert outcome(*options, *own, "--check")[0] != 0
    assert sorted(tmp_path.iterdir()) == before


def test_a_batch_of_half_a_pair_is_told_in_options(outcome):
    code, said = outcome("prefer", "--global-batch", "3", "--check")
    assert code == 2
    wanted = "whole examples of 2 rows, got --global-batch 3: pass --global-batch 4"
    assert said[0].endswith(wanted)


class TestOut:
    def test_other_files_are_named_with_the_words_to_type(self, outcome, tmp_path):
        for name in "abcdefg":
            (tmp_path / "full" / name).mkdir()
        code, said = outcome("chat", "--out", "full")
        assert code == 2
        full = str(tmp_path / "full")
        assert f"got {full!r} with a, b, c, d, e and 3 more: pass another --out" in said[0]
        assert f"such as --out {full}/run" in said[0]
        assert (tmp_path / "full" / "notes.txt").read_text() == "mine"
        assert not (tmp_path / "full" / "run.json").exists()

    def test_a_file_is_refused(self, outcome, tmp_path):
        code, said = outcome("chat", "--out", "full/notes.txt")
        assert code == 2
        assert "a run needs a directory, got the file" in said[0]

    @pytest.mark.thorough
    def test_what_a_killed_run_or_a_file_manager_left_is_no_other_file(self, outcome, tmp_path):
        (tmp_path / "new").mkdir()
        for name in ("run.json.partial", ".DS_Store"):
            (tmp_path / "new" / name).write_text("")
        code, said = outcome("chat", "--out", "new", "--check")
        assert (code, said) == (0, [])


@pytest.mark.thorough
def test_a_run_of_its_own_goes_on_in_its_directory(outcome, tmp_path, capsys):
    line = ("chat", "--out", "run", "--prompts", "0")
    assert outcome(*line) == (0, [])
    (tmp_path / "run" / "notes.txt").write_text("mine")
    assert outcome(*line, "--check") == (0, [])
    assert cli.main(["train", "--out", "run", "--steps", "3"]) == 0


@pytest.mark.thorough
def test_fewer_ids_than_asked_for_are_told_and_recorded(tmp_path, capsys):
    """The same command again, which asks for them too, goes on with the run."""
    text = tmp_path / "text"
    text.mkdir()
    for i in range(4):
        (text / f"{i}.txt").write_text(f"one two three {i} " * 40)
    line = ["train", "pretrain", "--text", str(text), "--out", str(tmp_path / "run")]
    line += ["--vocab-size", "100000", "--length", "16", "--global-batch", "2", "--embed", "16"]
    line += ["--depth", "1", "--heads", "2", "--mlp", "24"]
    assert cli.main([*line, "--steps", "1"]) == 0
    written = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    ids = json.loads((tmp_path / "run" / "tokenizer.json").read_text())["model"]["vocab"]
    rows = json.loads((tmp_path / "run" / "hf" / "config.json").read_text())["vocab_size"]
    true = written["vocabulary"]["vocab_size"]
    assert true == rows
    assert 258 < true < 400
    assert len(ids) <= true <= len(ids) + 2
    told = f"The text yields {true} ids, not the 100000 of --vocab-size"
    assert told in capsys.readouterr().err
    assert cli.main([*line, "--steps", "2"]) == 0
    assert told not in capsys.readouterr().err
    other = ["5000" if x == "100000" else x for x in line]
    assert cli.main([*other, "--steps", "3"]) == 2
    assert f"--vocab-size 5000 (the run has {true})" in capsys.readouterr().err

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `dovetail train`, as far as it goes before it trains; the rest is integration."""

import dataclasses
import json

import pytest

from dovetail_stack import cli, settings
from dovetail_stack.settings import RECIPES, Pretrain


def _stopped(capsys, *line):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["train", *line])
    printed = capsys.readouterr()
    return stopped.value.code, printed.out + printed.err


def test_the_help_lists_the_recipes_with_a_line_each(capsys):
    code, shown = _stopped(capsys, "--help")
    shown = " ".join(shown.split())
    assert code == 0
    for name, kind in RECIPES.items():
        assert f"{name} {kind.__doc__.splitlines()[0]}" in shown


@pytest.mark.parametrize("name", RECIPES)
def test_the_help_of_a_recipe_has_every_field_with_help_and_default(name, capsys):
    code, shown = _stopped(capsys, name, "--help")
    shown = " ".join(shown.split())
    assert code == 0
    for part in settings.parts(RECIPES[name]).values():
        for item in dataclasses.fields(part):
            assert f"--{item.name.replace('_', '-')}" in shown
            default = str(item.default)
            if item.default is dataclasses.MISSING:
                default = "needed for a new run"
            elif item.default in (None, ()):
                default = "none"
            assert f"{item.metadata['help']} ({default})" in shown


def test_an_option_of_another_recipe_is_refused_by_name(capsys, tmp_path):
    line = ("--out", str(tmp_path / "r"), "--lora-rank", "2", "--learning-rates", "1")
    code, shown = _stopped(capsys, "distil", *line)
    assert code == 2
    assert "unknown arguments: --lora-rank" in shown
    assert "--learning-rates (did you mean --learning-rate?)" in shown
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "line, wanted",
    [
        (["pretrain", "--text", "x"], "required: --out RUN"),
        ([], "required: --out RUN"),
        (["bake", "--out", "x"], "choose from"),
        (["continue", "--out", "x", "--precision", "float16"], "choose from"),
        (["distil", "--out", "x", "--steps", "3", "--minutes", "1"], "not allowed with"),
    ],
)
def test_usage_is_refused_with_what_is_wanted(capsys, line, wanted):
    code, shown = _stopped(capsys, *line)
    assert code == 2
    assert wanted in shown


def test_a_new_run_without_its_recipe_is_told_their_names(capsys, tmp_path):
    assert cli.main(["train", "--out", str(tmp_path / "r")]) == 1
    assert "type dovetail train pretrain|continue|distil --out" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "line, wanted",
    [
        (["pretrain"], "a new run of pretrain needs text, got none: pass --text DIR"),
        (["continue", "--text", "."], "needs model, got none: pass --model DIR"),
        (["distil", "--text", "."], "needs teacher, got none: pass --teacher DIR"),
        (["distil", "--text", ".", "--teacher", ".", "--alpha", "2"], "alpha must lie in [0, 1]"),
    ],
)
def test_what_a_new_run_lacks_is_said_before_anything_is_written(capsys, tmp_path, line, wanted):
    assert cli.main(["train", *line, "--out", str(tmp_path / "r")]) == 1
    assert wanted in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_options_become_settings_with_paths_from_the_root(capsys, tmp_path, monkeypatch):
    (tmp_path / "texts").mkdir()
    for name in "xy":
        (tmp_path / "texts" / name).write_bytes(b"caf\xe9")
    monkeypatch.chdir(tmp_path)
    line = ["pretrain", "--out", "r", "--text", "texts", "--skip", "a", "b", "--steps", "4"]
    assert cli.main(["train", *line]) == 1  # it is not UTF-8
    assert "chosen by --pattern '**/*' without --skip ('a', 'b'); for others, start" in (
        capsys.readouterr().err
    )
    made = settings.load(tmp_path / "r")
    assert made == settings.create(
        Pretrain, {"text": str(tmp_path / "texts"), "skip": ("a", "b"), "steps": 4}
    )
    event = json.loads((tmp_path / "r" / "starts.jsonl").read_text().splitlines()[-1])
    assert event["outcome"] == "failed"
    assert "must be UTF-8" in event["error"]
    assert cli.main(["train", *line, "--depth", "7"]) == 1
    assert "--depth 7 (the run has 4)" in capsys.readouterr().err


def test_a_name_that_is_wrong_leaves_no_run_behind(capsys, tmp_path):
    out = tmp_path / "r"
    for line, wanted in (
        (["pretrain", "--text", str(tmp_path / "none")], "the text must be a directory"),
        (["pretrain", "--text", str(tmp_path)], "matches pattern="),
    ):
        assert cli.main(["train", *line, "--out", str(out)]) == 1
        assert wanted in capsys.readouterr().err
        assert not out.exists()
    for name in "xy":
        (tmp_path / name).write_text("words")
    for line in (["continue", "--model"], ["distil", "--teacher"]):
        command = [*line, str(tmp_path), "--text", str(tmp_path), "--out", str(out)]
        assert cli.main(["train", *command]) == 1
        assert "a model is a directory with config.json" in capsys.readouterr().err
        assert not out.exists()

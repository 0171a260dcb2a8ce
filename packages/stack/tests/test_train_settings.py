# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The options --settings, --print-settings and --config of `dovetail train`, before it trains."""

import dataclasses
import json

import pytest

from dovetail_stack import cli, settings, training
from dovetail_stack.settings import RECIPES, Pretrain


@pytest.fixture
def stopped(monkeypatch):
    """Every launch fails once its settings are written."""

    def stop(*_, **__):
        raise RuntimeError("stopped")

    monkeypatch.setattr(training, "execute", stop)


@pytest.fixture
def texts(tmp_path):
    directory = tmp_path / "texts"
    directory.mkdir()
    for name in "xy":
        (directory / name).write_text("words")
    return directory


def _settings(tmp_path, text):
    path = tmp_path / "s.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.thorough
def test_a_settings_file_and_typed_options_make_a_run(capsys, tmp_path, texts, stopped):
    text = f'recipe = "pretrain"\n[files]\ntext = "{texts}"\n[shape]\ndepth = 3\nembed = 8\n'
    file = _settings(tmp_path, text)
    out = tmp_path / "r"
    assert cli.main(["train", "--settings", file, "--out", str(out), "--steps", "9"]) == 1
    made = settings.create(Pretrain, {"text": str(texts), "depth": 3, "embed": 8, "steps": 9})
    assert settings.load(out) == dataclasses.replace(made, skipped=())
    assert (
        cli.main(["train", "pretrain", "--settings", file, "--out", str(out), "--depth", "1"]) == 1
    )
    assert settings.load(out).shape.depth == 1
    # It resumes too, and another value of the file is another run.
    (out / "metrics.jsonl").write_text("")
    capsys.readouterr()
    assert cli.main(["train", "--settings", file, "--out", str(out)]) == 2
    assert "--depth 3 (the run has 1)" in capsys.readouterr().err
    bare = _settings(tmp_path, "[training]\nema = 0.5\n")
    assert cli.main(["train", "--settings", bare, "--out", str(out)]) == 2
    assert "--ema 0.0 is now 0.5" not in capsys.readouterr().err  # it adds arrays
    assert cli.main(["train", "--settings", bare, "--out", str(out), "--resume", "convert"]) == 1
    assert "--ema 0.0 is now 0.5" in capsys.readouterr().err


def test_the_file_of_another_recipe_or_of_none_is_refused(capsys, tmp_path):
    file = _settings(tmp_path, "[shape]\ndept = 3\n")
    assert cli.main(["train", "--settings", file, "--out", str(tmp_path / "r")]) == 2
    assert "settings belong to a recipe, got none" in capsys.readouterr().err
    assert cli.main(["train", "continue", "--settings", file, "--out", str(tmp_path / "r")]) == 2
    assert "got [shape]" in capsys.readouterr().err
    assert cli.main(["train", "distil", "--settings", file, "--out", str(tmp_path / "r")]) == 2
    assert "did you mean depth?" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("name", RECIPES)
def test_printed_settings_start_nothing_and_give_the_same_again(capsys, tmp_path, name):
    line = ["train", name, "--steps", "7", "--length", "32", "--tensor", "2", "--print-settings"]
    assert cli.main(line) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    file = _settings(tmp_path, printed.out)
    assert cli.main(["train", "--settings", file, "--print-settings"]) == 0
    assert capsys.readouterr().out == printed.out
    assert cli.main(["train", "--settings", file, "--print-settings", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["recipe"], content["devices"]["tensor"]) == (name, 2)
    needs = content["files"]["text"] if "files" in content else content["examples"]["records"]
    assert (content["duration"]["steps"], needs) == (7, None)


def test_the_settings_of_a_run_are_printed_and_shown(capsys, tmp_path, texts, stopped):
    out = tmp_path / "r"
    line = ["train", "pretrain", "--out", str(out), "--text", str(texts), "--minutes", "2"]
    assert cli.main([*line, "--family", "mixtral", "--experts", "4"]) == 1
    settings.load(out).with_steps(11).save(out)
    capsys.readouterr()
    assert cli.main(["train", "--out", str(out), "--print-settings"]) == 0
    printed = capsys.readouterr().out
    for text in ('family = "mixtral"', "experts = 4", "expert_mlp = 256", "steps = 11"):
        assert f"\n{text}\n" in printed
    assert "\n# minutes = ...\n" in printed
    assert cli.main(["train", "--print-settings"]) == 2
    assert f"type dovetail train {'|'.join(RECIPES)} --print" in capsys.readouterr().err
    assert cli.main(["runs", "show", str(out)]) == 0
    shown = capsys.readouterr().out.split()
    assert shown[shown.index("family") + 1] == "mixtral"
    assert shown[shown.index("experts") + 1] == "4"


def test_the_keys_of_a_config_json_are_kept(capsys, tmp_path, texts, stopped):
    from dovetail_models import mixtral
    from dovetail_models.hf.config import describe

    sizes = {"embed": 8, "depth": 1, "heads": 2, "mlp": 4, "experts": 2}
    keys = describe(mixtral(vocab_size=9, max_length=16, **sizes))
    file = tmp_path / "config.json"
    file.write_text(json.dumps(keys))
    out = tmp_path / "r"
    line = ["train", "pretrain", "--out", str(out), "--text", str(texts), "--config", str(file)]
    assert cli.main(line) == 2
    assert (
        "the 16 positions that the config.json names, got --length 256" in capsys.readouterr().err
    )
    line += ["--length", "16"]
    assert cli.main([*line, "--expert", "3", "--global-batch", "3", "--estimate", "H200"]) == 2
    assert "the 2 experts of a layer must divide" in capsys.readouterr().err
    assert cli.main(line) == 1
    assert settings.load(out).keys == keys
    capsys.readouterr()
    (out / "metrics.jsonl").write_text("")
    file.unlink()
    assert cli.main(line) == 1
    assert "error: stopped" in capsys.readouterr().err
    assert cli.main([*line, "--config", str(out)]) == 2
    assert f"(the run has {file})" in capsys.readouterr().err

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import re

import pytest

from dovetail_stack import cli


def _refused(capsys, *argv):
    with pytest.raises(SystemExit) as stopped:
        cli.main(argv)
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_an_unknown_option_names_the_nearest(capsys):
    message = _refused(capsys, "train", "pretrain", "--out", "x", "--vocabsize", "300")
    assert "--vocabsize" in message
    assert "did you mean --vocab-size?" in message
    assert "dovetail train pretrain --help" in message


def test_an_unknown_command_none_and_help_list_the_commands(capsys):
    assert "COMMAND must be one of quickstart, train, " in _refused(capsys, "trian")
    for argv in ([], ["help"], ["--help-all"]):
        try:
            code = cli.main(argv)
        except SystemExit as stopped:
            code = stopped.code
        assert code == 0
        assert set(cli.COMMANDS) <= set(capsys.readouterr().out.split())


def test_a_value_of_the_wrong_kind_is_refused(capsys):
    assert "--depth must be a whole number, got --depth deep" in _refused(
        capsys, "train", "pretrain", "--out", "x", "--depth", "deep"
    )


def test_an_error_is_one_message_without_a_trace(capsys, tmp_path):
    assert cli.main(["train", "--out", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert "holds no run to resume; a new one needs a recipe: type dovetail train pretrain" in error
    assert "Traceback" not in error
    with pytest.raises(ValueError, match="needs a recipe"):
        cli.main(["train", "--out", str(tmp_path / "none"), "--debug"])


def test_a_model_that_is_not_there_says_what_a_model_is(capsys, tmp_path):
    assert cli.main(["generate", str(tmp_path), "--prompt", "x"]) == 2
    assert "a model is a directory with config.json" in capsys.readouterr().err
    (tmp_path / "run.json").write_text("{}")
    assert cli.main(["generate", str(tmp_path), "--prompt", "x"]) == 2
    assert "has not exported a model yet: let it finish with" in capsys.readouterr().err


def test_a_pattern_without_a_text_is_refused_not_ignored(capsys, tmp_path):
    assert cli.main(["quickstart", "--out", str(tmp_path), "--pattern", "*.py"]) == 2
    assert "pass --text DIR too" in capsys.readouterr().err


def test_steps_and_minutes_of_the_quickstart_exclude_each_other(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["quickstart", "--steps", "3", "--minutes", "1"])
    assert stopped.value.code == 2
    assert "--minutes and --steps exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize("command", sorted(cli.COMMANDS))
def test_every_command_has_a_summary_and_help(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([command, "--help"])
    assert stopped.value.code == 0
    shown = capsys.readouterr().out
    assert cli.module(command).__doc__.splitlines()[0] == cli.COMMANDS[command]
    assert cli.COMMANDS[command] in shown


@pytest.mark.parametrize("recipe", ["pretrain", "continue", "distil"])
def test_the_help_of_a_recipe_has_no_arguments_of_python(recipe, capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", recipe, "--help"])
    shown = capsys.readouterr().out
    assert "Train" in shown
    assert not re.search(r"^(Args|Returns|Raises|Example):", shown, re.MULTILINE)

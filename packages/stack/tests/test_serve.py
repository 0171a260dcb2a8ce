# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `dovetail serve`, which is the library's own action."""

import pytest

from dovetail_serve.command.cli import ACTIONS
from dovetail_stack import cli
from dovetail_stack._command import Parser


def options_of(parser):
    return {option for action in parser._actions for option in action.option_strings}


def test_it_takes_what_the_action_of_the_library_takes():
    own = Parser()
    ACTIONS["serve"].declare(own)
    mounted = cli.parser(["serve"])._subparsers._group_actions[0].choices["serve"]
    assert options_of(mounted) == options_of(own)
    assert {"--host", "--http", "--grpc", "--versions", "--token-file"} <= options_of(mounted)


def test_a_hugging_face_directory_is_answered_by_a_sentence(capsys, source):
    assert cli.main(["serve", str(source)]) == 2
    told = capsys.readouterr().err
    assert "got the Hugging Face directory" in told
    assert "server of language models does not exist yet" in told


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["nowhere"], "got PATH"),
        ([".", "--tls-key", "k"], "--tls-certificate FILE --tls-key FILE"),
        ([".", "--label", "x"], "--label"),
    ],
)
def test_a_wrong_line_is_answered_in_its_own_words(capsys, tmp_path, monkeypatch, line, words):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["serve", *line]) == 2
    assert words in capsys.readouterr().err

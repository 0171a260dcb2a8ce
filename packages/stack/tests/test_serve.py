# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command `dovetail serve`: the library's own action, and a language model."""

import datetime
import shutil
import socket
from pathlib import Path

import pytest

from dovetail_data import Pretrained
from dovetail_serve.command.cli import ACTIONS
from dovetail_stack import cli
from dovetail_stack._command import Parser
from dovetail_stack.commands.serve import is_model, keys_of
from dovetail_stack.recipes.record_options import Dialogue
from dovetail_stack.recipes.serving import chat


def options_of(parser):
    return {option for action in parser._actions for option in action.option_strings}


def test_it_takes_what_the_action_of_the_library_takes():
    own = Parser()
    ACTIONS["serve"].declare(own)
    mounted = cli.parser(["serve"])._subparsers._group_actions[0].choices["serve"]
    assert options_of(mounted) > options_of(own)
    assert {"--host", "--http", "--grpc", "--versions", "--token-file"} <= options_of(own)


def test_what_a_path_holds_decides(tmp_path, source):
    assert is_model(source)
    assert is_model(Path("Qwen/Qwen3-0.6B"))  # of the Hub
    (tmp_path / "run" / "hf").mkdir(parents=True)
    assert not is_model(tmp_path / "run")
    (tmp_path / "run" / "hf" / "config.json").touch()
    assert is_model(tmp_path / "run")
    assert not is_model(tmp_path)  # perhaps of bundles
    assert not is_model(tmp_path / "absent")


@pytest.mark.parametrize(
    ("option", "other"),
    [
        (["--grpc", "1"], "--grpc must be left out for a language model"),
        (["--max-batch", "4"], "--max-batch must be left out for a language model"),
        (["--api", "bundles", "--max-rows", "4"], "--max-rows must be left out for bundles"),
        (["--template", "absent.jinja"], "absent.jinja"),
        (["--max-length", "0"], "max_length"),
    ],
)
def test_an_option_of_the_other_server_is_refused(capsys, source, option, other):
    assert cli.main(["serve", str(source), *option]) == 2
    assert other in capsys.readouterr().err.replace("max-length", "max_length")


def test_an_address_that_is_taken_is_refused_before_loading(capsys, source, monkeypatch):
    monkeypatch.setattr("dovetail_stack.recipes.engine.engine", None)  # calling it would fail
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert cli.main(["serve", str(source), "--http", port]) == 2
    told = capsys.readouterr().err
    assert f"got --host 127.0.0.1 and --http {port}" in told
    assert "type --http 0" in told
    assert cli.main(["serve", str(source), "--http", "70000"]) == 2
    assert "--http 70000" in capsys.readouterr().err


def test_keys_are_the_lines_of_a_file(tmp_path):
    (tmp_path / "keys").write_text("one\n\ntwo\n")
    assert keys_of(tmp_path / "keys") == ["one", "two"]
    (tmp_path / "none").write_text("\n")
    with pytest.raises(ValueError, match="one in a line"):
        keys_of(tmp_path / "none")


def test_conversations_have_the_ids_of_the_template(talker):
    tokenizer = Pretrained(talker)
    ids = chat(talker, tokenizer, Dialogue())
    messages = [{"role": "user", "content": "say red </s>"}]
    text = "[user]say red </s>[assistant]"
    assert (
        tokenizer.decode(ids(messages, (), {})) == text
    )  # what a message says is no special token
    with pytest.raises(ValueError, match="role"):
        ids([{"content": "a"}], (), {})
    with pytest.raises(ValueError, match="assistant"):
        ids([*messages, {"role": "assistant", "content": "red"}], (), {})


def test_a_template_that_writes_the_date_has_that_of_the_request(talker, tmp_path):
    shutil.copytree(talker, tmp_path / "dated")
    source = "{{ strftime_now('%Y-%m-%d') }}{% for m in messages %}{{ m.role }}{{ m.content }}"
    (tmp_path / "dated" / "chat_template.jinja").write_text(source + "{% endfor %}")
    tokenizer = Pretrained(tmp_path / "dated")
    said = [{"role": "user", "content": "a"}]
    dated = chat(tmp_path / "dated", tokenizer, Dialogue(date="2020-02-29"))
    assert tokenizer.decode(dated(said, (), {})) == "2020-02-29usera"
    today = tokenizer.decode(chat(tmp_path / "dated", tokenizer, Dialogue())(said, (), {}))
    assert today == f"{datetime.date.today()}usera"


def test_a_directory_without_a_template_has_no_chat(source):
    assert chat(source, Pretrained(source), Dialogue()) is None


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

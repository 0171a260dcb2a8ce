# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Words of other programs, and failures as --json prints them."""

import json
import re

import pytest

from dovetail_stack import cli
from dovetail_stack.words import ANSWERS


def _refused(capsys, *line):
    with pytest.raises(SystemExit) as stopped:
        cli.main(line)
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert (stopped.value.code, len(lines)) == (2, 2)
    return lines[0], printed.out


def _walk(parser, line=()):
    """{command line: options} of a parser and of those below it."""
    found = {line: set(parser._option_string_actions)}
    for name, below in parser._below().items():
        found |= _walk(below, (*line, name))
    return found


def test_the_answers_name_commands_and_options_that_exist():
    commands = _walk(cli.parser_of(cli.COMMANDS))
    known = set().union(*commands.values())
    for word, answer in ANSWERS.items():
        advised = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", answer))
        assert advised <= known, word
        for command, action in re.findall(r"dovetail ([a-z]+)(?: ([a-z]+))?", answer):
            assert {(command,), (command, action)} & set(commands), word


@pytest.mark.parametrize(
    "word",
    [w for w in ANSWERS if w[:2] != "--" and w not in ("adam", "bf16", "fp16", "fp32", "float16")],
)
def test_a_command_of_another_program_is_answered(capsys, word):
    answer, _ = _refused(capsys, word, "model")
    assert answer.endswith((f"got {word}: {ANSWERS[word]}", f"did you mean {word}?")) or (
        "did you mean" in answer
    )


@pytest.mark.parametrize(
    "line, wanted",
    [
        ("train pretrain --optimizer adam", "--matrix-learning-rate RATE or --learning-rate RATE"),
        ("train pretrain --bf16", "type --precision bfloat16"),
        ("train chat --per-device-train-batch-size 4", "did you mean --global-batch?"),
        ("train chat --model_name_or_path m", "did you mean --model?"),
        ("train pretrain --num-gpus 8", "type --data N or --fsdp N"),
        ("train continue --warmup-steps 5", "the schedule follows from --steps"),
        ("serve r --port 80 --zzz 1", "no option --port: did you mean --http?; no option --zzz: "),
        ("train pretrain --zebra", "no option --zebra: leave it out"),
        ("train --text x pretrain", "option --text: type it after dovetail train pretrain"),
        ("--json doctor", "no option --json before it: type dovetail doctor --json"),
        ("generate m -prompt x", "did you mean --prompt?"),
        ("generate m --Max_Tokens 5 --prompt x", "did you mean --max-tokens?"),
        ("train pretrain --x=a\nb", "no option --x: leave it out"),
        ("train pretrain --depth deep", "--depth must be a whole number, got --depth deep"),
        ("train pretrain --depth", "--depth must have a value, got none: type --depth N"),
        ("doctor --json=3", "--json takes no value, got 3: type --json"),
        ("runs", "got none: type dovetail runs ACTION ..."),
        ("train pretrain --precision bf16", "got --precision bf16: type bfloat16"),
    ],
)
def test_an_option_of_another_program_is_answered(capsys, line, wanted):
    assert wanted in _refused(capsys, *line.split(" "))[0]


@pytest.mark.parametrize("word", ["optimizer", "qqq"])
def test_nothing_unlike_is_suggested(capsys, word):
    assert "did you mean" not in _refused(capsys, "train", "pretrain", f"--{word}", "1")[0]


@pytest.mark.parametrize(
    "line, code",
    [
        ("train pretrain --zzz --json", 2),
        ("train pretrain --json --text nowhere --out run", 2),
        ("runs show nowhere --json", 2),
        ("runs list nowhere --json", 2),
        ("generate nowhere --prompt x --json", 2),
        ("quantize nowhere --out x --json", 2),
        ("models inspect nowhere --json", 2),
        ("data inspect nowhere --json", 2),
        ("checkpoint inspect nowhere --json", 2),
        ("bundle inspect nowhere --json", 2),
        ("quickstart --pattern x --json", 2),
        ("completion tcsh --json", 2),
        ("runs compare one --json", 2),
    ],
)
def test_a_failure_is_one_object_too(capsys, monkeypatch, tmp_path, line, code):
    monkeypatch.chdir(tmp_path)
    try:
        ended = cli.main(line.split())
    except SystemExit as stopped:
        ended = stopped.code
    printed = capsys.readouterr()
    failure = json.loads(printed.out)
    assert (ended, failure["exit_code"]) == (code, code)
    assert failure["error"] in printed.err
    assert set(failure) == {"error", "exit_code"}
    assert list(tmp_path.iterdir()) == []


def test_an_unexpected_error_is_one_line_and_how_to_see_more(capsys, monkeypatch):
    def broken():
        raise KeyError("colour")

    monkeypatch.setattr("dovetail_stack.commands.doctor.diagnose", broken)
    assert cli.main(["doctor", "--json"]) == 1
    printed = capsys.readouterr()
    assert printed.err == (
        "dovetail: error: unexpected KeyError: 'colour'\n"
        "dovetail: --debug shows where: dovetail doctor --debug ...\n"
    )
    assert json.loads(printed.out) == {"error": "unexpected KeyError: 'colour'", "exit_code": 1}
    with pytest.raises(KeyError, match="colour"):
        cli.main(["doctor", "--debug"])

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every command and sub-command has the same manner; the table is walked, not written."""

import argparse
import re
from pathlib import Path

import pytest

from dovetail_stack import cli

EXIT_CODES = """
exit codes:
  0    done
  1    failed, or two things that were compared differ
  2    the command line is wrong: an option, a value or a path
  3    data are damaged or refused
  130  interrupted
"""


def _walk(parser, line):
    """{command line: parser} of a parser and of those below it."""
    found = {line: parser}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                found |= _walk(below, (*line, name))
    return found


COMMANDS = {(): cli.parser([])}
for _name in cli.COMMANDS:
    COMMANDS |= _walk(cli.parser([_name])._subparsers._group_actions[0].choices[_name], (_name,))
LINES = sorted(COMMANDS)
NAMES = {("train", "sft"): ("train", "chat"), ("train", "dpo"): ("train", "prefer")}
KNOWN = {o for p in COMMANDS.values() for action in p._actions for o in action.option_strings}


def _ended(capsys, *argv):
    with pytest.raises(SystemExit) as stopped:
        cli.main(argv)
    printed = capsys.readouterr()
    return stopped.value.code, printed.out, printed.err


def test_the_walk_finds_the_commands():
    assert len(LINES) == 54  # itself, 14 commands, 37 sub-commands, 2 aliases
    assert {("train", "distil"), ("data", "budget"), ("runs", "compare"), ("doctor",)} <= set(LINES)


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_help_ends_with_the_exit_codes(capsys, line):
    code, out, err = _ended(capsys, *line, "--help")
    assert (code, err) == (0, "")
    assert out.endswith(EXIT_CODES)
    assert "--debug" in out


def test_every_command_that_does_something_takes_json():
    groups = {line[:n] for line in LINES for n in range(len(line))} - {("train",)}
    groups |= {("serve",), ("profile", "run")}  # print nothing, and what the script prints
    without = {
        line
        for line in LINES
        if line not in groups
        and "--json" not in {o for a in COMMANDS[line]._actions for o in a.option_strings}
    }
    assert without == set()


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_a_wrong_line_ends_with_2(capsys, line):
    code, out, err = _ended(capsys, *line, "--no-such-option")
    assert (code, out) == (2, "")
    assert err == (
        f"dovetail: error: {' '.join(('dovetail', *NAMES.get(line, line)))} has no option "
        f"--no-such-option: leave it out\n"
        f"dovetail: help: {' '.join(('dovetail', *NAMES.get(line, line)))} --help\n"
    )


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_a_misspelt_option_is_answered_by_the_nearest(capsys, line):
    parser = COMMANDS[line]
    for options in (action.option_strings for action in parser._actions):
        if options and len(options[-1]) > 5:
            with pytest.raises(SystemExit) as stopped:
                parser.refuse([options[-1] + "x"])
            assert stopped.value.code == 2
            assert f"did you mean {options[-1]}?" in capsys.readouterr().err


@pytest.mark.parametrize("line", [line for line in LINES if line], ids=" ".join)
def test_a_misspelt_command_is_answered_by_the_nearest(capsys, line):
    *before, name = line
    code, _, err = _ended(capsys, *before, name[:-1] + "x" + name[-1])
    assert code == 2
    assert f"did you mean {name}?" in err


@pytest.mark.parametrize(
    "line, near",
    [
        ("train pretrain --out r --batch-size 8", "--global-batch"),
        ("train pretrain --out r --lr 1", "--learning-rate"),
        ("train pretrain --out r --head-dim 64", "--heads"),
        ("train continue --out r --seq-len 64", "--length"),
        ("train distil --out r --hidden-size=64", "--embed"),
        ("generate r --prompt x --max-new-tokens 3", "--max-tokens"),
        ("quantize r --out o --skip embed", "--float"),
        ("quantize r --out o --group-size 32", "--group"),
        ("data write f --out o --output x", "--out"),
    ],
)
def test_an_option_of_another_program_is_answered_by_its_meaning(capsys, line, near):
    code, _, err = _ended(capsys, *line.split())
    assert code == 2
    assert f"did you mean {near}?" in err


@pytest.mark.parametrize(
    "line",
    [
        ("runs", "list", "nowhere"),
        ("checkpoint", "inspect", "nowhere"),
        ("data", "inspect", "nowhere"),
        ("models", "inspect", "nowhere"),
        ("bundle", "inspect", "nowhere"),
        ("bundle", "export", "nowhere", "--out", "x"),
        ("serve", "nowhere"),
        ("generate", "nowhere", "--prompt", "x"),
        ("quantize", "nowhere", "--out", "x"),
        ("train", "--out", "nowhere"),
        ("quickstart", "--pattern", "*.py"),
    ],
    ids=" ".join,
)
def test_debug_raises_wherever_it_stands(capsys, line):
    assert cli.main(line) == 2
    assert "dovetail: error: " in capsys.readouterr().err
    for at in range(min(3, len(line)) + 1):
        if line[at - 1 : at] in (("--out",), ("--pattern",), ("--prompt",)):
            continue  # it would be the option's value
        with pytest.raises((ValueError, FileNotFoundError), match=r"."):
            cli.main([*line[:at], "--debug", *line[at:]])


@pytest.mark.parametrize("line", [line for line in LINES if line], ids=" ".join)
def test_a_message_about_any_argument_names_its_option(line):
    for action in COMMANDS[line]._actions:
        name, option = action.dest, (action.option_strings or [""])[-1]
        if not option or name in ("help", "rules"):
            continue
        told = COMMANDS[line].as_typed(f"{name} must be 1, got {name}=2: pass {name}=")
        assert told == f"{option} must be 1, got {option} 2: pass {option}"


def test_several_values_are_said_as_they_are_typed():
    parser = COMMANDS["bundle", "export"]
    for values, typed in (("(1, 8)", "1 8"), ("(1,)", "1"), ("['cpu', 'a b']", "cpu 'a b'")):
        for said in (
            f"batch_sizes must ascend, got batch_sizes={values}; write platforms={values}",
        ):
            told = (
                f"--batch-sizes must ascend, got --batch-sizes {typed}; write --platforms {typed}"
            )
            assert parser.as_typed(said) == told
    assert parser.as_typed("write platforms=(..., 'cpu')") == "write --platforms ... cpu"
    assert parser.as_typed("got platforms (of JAX) and out=(1, 2)") == (
        "got platforms (of JAX) and --out (1, 2)"
    )


def test_words_that_are_no_arguments_stay():
    parser = COMMANDS["train", "pretrain"]
    for text in ("the text must be", "a/text=1", "'text'=", "width=3", "no vocab", "x.length"):
        assert parser.as_typed(text) == text
    assert parser.as_typed("got pattern=None and \x1b[2J") == "got no --pattern and ␛[2J"


def test_the_options_that_the_sources_advise_exist():
    advised = set()
    # Others hold options of pip, options that other programs have, and style sheets.
    foreign = {"doctor.py", "words.py", "chart.py", "report.py"}
    for path in sorted(Path(cli.__file__).parent.rglob("*.py")):
        if path.name not in foreign:
            advised |= set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", path.read_text()))
    assert len(advised) > 20
    assert advised - KNOWN == set()

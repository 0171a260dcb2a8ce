# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The completion script, in a real bash."""

import argparse
import json
import os
import pty
import select
import shlex
import shutil
import subprocess
import time

import pytest

from dovetail_stack import cli
from dovetail_stack.commands import completion

BASH = shutil.which("bash")
LIMIT_S = 120  # only a hang takes so long


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    assert BASH, "bash must be installed; install bash"
    file = tmp_path_factory.mktemp("completion") / "dovetail.bash"
    file.write_text(completion.script(cli.parser_of(cli.COMMANDS), shell="bash"))
    return file


def completed(script, *words, cwd=None):
    """The words that bash offers for the last one."""
    program = (
        'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
        '"$(complete -p dovetail | sed -E "s/.*-F ([^ ]+).*/\\1/")" dovetail; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    line = [BASH, "--norc", "-c", program, "bash", str(script), "dovetail", *words]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=cwd)
    return set(done.stdout.split())


def test_all_commands(script):
    assert set(cli.COMMANDS) <= completed(script, "")
    assert completed(script, "qu") == {"quickstart", "quantize"}


def test_actions_and_options_of_a_command(script):
    assert completed(script, "data", "ver") == {"verify"}
    assert completed(script, "bundle", "") >= {"export", "verify", "inspect", "precompile"}
    assert completed(script, "bundle", "export", "--batch") == {"--batch-sizes"}
    assert completed(script, "serve", "--token") == {"--token-file"}
    assert completed(script, "train", "pretrain", "--learning") == {"--learning-rate"}
    assert completed(script, "completion", "") >= {"bash", "zsh"}
    assert "--learning-rate" not in completed(script, "doctor", "--")
    assert completed(script, "train", "distil", "--family", "mix") == {"mixtral"}
    assert completed(script, "train", "pretrain", "--print") == {"--print-settings"}


def test_a_path_is_completed_by_files(script, tmp_path):
    (tmp_path / "some_run").mkdir()
    assert completed(script, "checkpoint", "verify", "some", cwd=tmp_path) == {"some_run"}
    for command in (("serve",), ("bundle", "inspect"), ("bundle", "export")):
        assert completed(script, *command, "some", cwd=tmp_path) == {"some_run"}
    for option in ("--settings", "--config"):
        words = "train", "pretrain", option, "some"
        assert completed(script, *words, cwd=tmp_path) == {"some_run"}


def test_a_key_press_completes(script, tmp_path):
    terminal, of_shell = pty.openpty()  # no pty.fork: this process has JAX's threads
    shell = subprocess.Popen(
        [BASH, "--norc", "--noprofile", "-i"],
        env={"PATH": os.environ["PATH"], "TERM": "dumb", "HOME": str(tmp_path)},
        stdin=of_shell,
        stdout=of_shell,
        stderr=of_shell,
        start_new_session=True,
    )
    os.close(of_shell)
    try:
        os.write(terminal, f"source '{script}'; echo rea''dy\n".encode())
        assert b"ready" in read_until(terminal, b"ready")
        os.write(terminal, b"dovetail quick\t")
        assert b"dovetail quickstart " in read_until(terminal, b"quickstart ")
    finally:
        os.write(terminal, b"\x15exit\n")  # an empty line, then the end
        shell.wait(LIMIT_S)
        os.close(terminal)


def read_until(terminal, wanted):
    seen, end = b"", time.monotonic() + LIMIT_S
    while wanted not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            seen += os.read(terminal, 4096)
    return seen


@pytest.mark.parametrize(
    "shell, first",
    [("bash", "# AUTOMATICALLY"), ("zsh", "#compdef dovetail"), ("fish", "# AUTOMATICALLY")],
)
def test_the_command_prints_the_script(capsys, shell, first):
    assert cli.main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert text.startswith(first)
    assert "learning-rate" in text
    assert cli.main(["completion", shell, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["shell"] == shell
    assert printed["script"].strip() == text.strip()


def test_fish_has_the_options_of_each_command():
    parser = cli.parser_of(cli.COMMANDS)
    text = completion.script(parser, shell="fish")
    code = [line.split("#")[0].split() for line in text.splitlines() if line[:8] != "complete"]
    begun = sum(bool({"function", "if", "for", "switch", "while"} & set(words)) for words in code)
    assert sum(words[:1] == ["end"] for words in code) == begun > 5  # every block has its end
    offered = {}
    for line in text.splitlines():
        if line.startswith("complete -c dovetail -n "):
            words = shlex.split(line)  # quotes are as in a POSIX shell
            name = words[4].partition(";")[0].removeprefix("_shtab_dovetail_using").strip()
            offered.setdefault(name, set()).update(
                word for at, word in enumerate(words) if words[at - 1] == "-l"
            )
    wanted = {}

    def walk(below, name):
        wanted[name] = {o[2:] for o in below._option_string_actions if o.startswith("--")}
        for action in below._actions:
            if isinstance(action, argparse._SubParsersAction):
                for word, inner in action.choices.items():
                    walk(inner, f"{name} {word}".strip())

    walk(parser, "")
    assert offered == wanted


def test_another_shell_is_refused_with_the_ones_there_are(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["completion", "csh"])
    assert stopped.value.code == 2
    assert "SHELL must be one of bash, zsh, fish, got csh" in capsys.readouterr().err

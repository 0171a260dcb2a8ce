# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The command: usage, and actions that another command mounts."""

import pytest

from dovetail_serve.command import cli


@pytest.mark.thorough
def test_misspelt_actions_and_options_exit_with_usage(command):
    code, _, err = command("verfiy", "repo")
    assert code == 2
    assert "did you mean verify?" in err
    code, _, err = command("serve", "repo", "--max-batsh", "3")
    assert code == 2
    assert "did you mean --max-batch?" in err


def test_another_command_can_mount_some_actions(here, capsys):
    parser = cli.Parser(prog="dovetail bundle")
    cli.add_arguments(parser, actions=("verify", "inspect"))
    args = parser.parse(["inspect", "repo/mlp/1"])
    assert cli.run(args) == 0
    assert capsys.readouterr().out.startswith("repo/mlp/1\n")
    with pytest.raises(SystemExit):
        parser.parse(["serve", "repo"])

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail generate DIR` and `generate` of transformers, over directories as people publish them.

The table of directories is published/*.json; conftest.py makes them, small and with random weights.
"""

import json
import subprocess
import sys

import pytest

from dovetail_models.fresh.sizes import decoders
from dovetail_stack import cli

pytestmark = pytest.mark.parity
transformers = pytest.importorskip("transformers")

NEW = 24


def line(directory, *options):
    given = ["--prompt", directory.text, "--max-tokens", str(NEW), "--json", *options]
    return ["generate", str(directory.path), *given]


def test_the_table_has_three_directories_of_every_family(table):
    assert table.keys() == set(decoders())
    assert {family: names for family, names in table.items() if len(names) < 3} == {}


def test_greedy_text_is_that_of_transformers(name, published, peer, capsys):
    directory = published(name)
    # The command leaves penalties of the directory aside unless asked.
    want = peer(directory.path, directory.prompt, max_new_tokens=NEW, repetition_penalty=1.0)
    assert want[-1] == directory.end
    assert 3 < len(want) <= NEW
    code = cli.main(line(directory))
    out, err = capsys.readouterr()
    assert code == 0, err
    got = json.loads(out)
    words = transformers.AutoTokenizer.from_pretrained(directory.path)
    assert got["prompt_tokens"] == len(directory.prompt)
    assert got["tokens"] == want
    assert got["text"] == words.decode(want, skip_special_tokens=True)
    assert (got["finish_reason"], got["stop"]) == ("stop", directory.end)


def test_a_process_of_the_command_gives_the_same(published, peer):
    directory = published("meta-llama/Llama-3.1-8B-Instruct")
    want = peer(directory.path, directory.prompt, max_new_tokens=NEW)
    done = subprocess.run(
        [sys.executable, "-m", "dovetail_stack", *line(directory)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["tokens"] == want


def test_the_penalty_of_the_directory_is_used_when_asked(published, peer, capsys):
    directory = published("Qwen/Qwen1.5-0.5B-Chat")
    want = peer(directory.path, directory.prompt, max_new_tokens=NEW)
    assert want != peer(
        directory.path, directory.prompt, max_new_tokens=NEW, repetition_penalty=1.0
    )
    assert cli.main(line(directory, "--directory-sampling", "--temperature", "0")) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == want

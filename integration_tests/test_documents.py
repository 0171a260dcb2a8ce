# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The walk of the READMEs: what it finds, what it runs in its place, what it refuses."""

import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import documents
from documents import DocumentError, Rules, blocks, planned, walk

pytestmark = pytest.mark.once

README = """# A package

    scripts/test

ends with

    scripts/test: all 8 checks passed

    in 13 minutes

```python
open("made", "w").write("DIR")
```

```console
$ cat made | tr a-z A-Z      # a comment
/.../PYTHON...
$ python -c "import sys; \\
    sys.exit(PLACEHOLDER)"
```

```sh
test -f made
echo 'of the two' > second
```

```toml
not = "run"
```
"""
SKIP = {"scripts/test": "it takes minutes"}
OUTPUT = {"scripts/test: all": "the time of one machine"}
HANG_S = 120
RULES = Rules(replace={"PLACEHOLDER": "0", "DIR": "{stdlib}"}, skip=SKIP, output=OUTPUT)


@pytest.fixture
def readme(tmp_path: Path) -> Path:
    file = tmp_path / "there" / "README.md"
    file.parent.mkdir()
    file.write_text(README)
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "here"
    made.mkdir()
    return made


def test_programs_and_commands_are_found_in_their_order():
    assert [(block.kind, block.text.strip(), block.output) for block in blocks(README)] == [
        ("command", "scripts/test", ""),
        ("command", "scripts/test: all 8 checks passed", ""),
        ("command", "in 13 minutes", ""),
        ("program", 'open("made", "w").write("DIR")', ""),
        ("command", "cat made | tr a-z A-Z", "/.../PYTHON...\n"),
        ("command", 'python -c "import sys;      sys.exit(PLACEHOLDER)"', ""),
        ("command", "test -f made", ""),
        ("command", "echo 'of the two' > second", ""),
    ]


def test_all_of_it_runs_in_one_directory(readme, folder):
    assert walk(readme, RULES, folder=folder) == 5
    assert Path((folder / "made").read_text()).joinpath("json").is_dir()
    assert (folder / "second").read_text() == "of the two\n"
    assert (folder / "README.md").read_text() == README
    assert list(readme.parent.iterdir()) == [readme]


def test_programs_alone_run_with_their_rules(readme, folder):
    assert walk(readme, RULES, folder=folder, programs=True) == 1
    assert Path((folder / "made").read_text()).joinpath("json").is_dir()
    assert not (folder / "second").exists()


def test_a_placeholder_without_a_rule_fails_with_what_was_printed(readme, folder):
    rules = Rules(replace={"DIR": "{stdlib}"}, skip=SKIP, output=OUTPUT)
    with pytest.raises(DocumentError, match="exit code 1") as error:
        walk(readme, rules, folder=folder)
    assert "NameError: name 'PLACEHOLDER' is not defined" in str(error.value)


@pytest.mark.parametrize(
    "text, message",
    [
        ("```console\n$ dovetial train\n```\n", "exit code 127\n.*dovetial: command not found"),
        ("```console\n$ false | true\n```\n", "false | true: exit code 1"),
        ("```python\nimport dovetial\n```\n", "No module named 'dovetial'"),
        ("ends with\n\n    all passed\n", "all: command not found"),
        ("```console\n$ echo 5\n6\n```\n", "the README says\n6\nand it printed\n5\n"),
        ("```console\n$ echo 5 >&2\n5\n```\n", "the README says\n5\nand it printed\n$"),
    ],
)
def test_a_block_that_does_not_do_what_is_printed_fails(readme, folder, text, message):
    readme.write_text(f"# A package\n\n{text}")
    with pytest.raises(DocumentError, match=f"(?s){message}"):
        walk(readme, Rules(), folder=folder)


@pytest.mark.parametrize(
    "text, message",
    [
        ("```bash\nls\n```\n", "got 'bash' before 'ls': say which it is"),
        ("```\nls\n```\n", "got '' before 'ls': say which it is"),
        ("```python\n1\n", "a fence is indented or has no end: '```python'"),
        ("1. An item\n\n   ```sh\n   ls\n   ```\n", "a fence is indented or has no end: '```sh'"),
        ("```console\nls\n$ ls\n```\n", "begins with a command after '. '; got 'ls'"),
        ("```console\n```\n", "begins with a command after '. '; got ''"),
    ],
)
def test_a_block_that_would_be_passed_over_is_refused(text, message):
    with pytest.raises(DocumentError, match=message):
        blocks(f"# A package\n\n{text}")


@pytest.mark.parametrize(
    "rules, stale",
    [
        (Rules(skip={"scripts/toast": "gone"}), "scripts/toast"),
        (Rules(replace={"FOLDER": "x"}), "FOLDER"),
        (Rules(output={"all 9 checks": "gone"}), "all 9 checks"),
        # What is skipped is not replaced.
        (Rules(replace={"scripts": "x"}, skip=SKIP, output=OUTPUT), "scripts"),
    ],
)
def test_a_rule_that_fits_nothing_is_refused(rules, stale):
    with pytest.raises(DocumentError, match=f"nothing in the README fits the rule '{stale}'"):
        planned(README, rules)


def test_rules_for_a_file_that_is_gone_are_refused(tmp_path):
    file = tmp_path / "documents.toml"
    file.write_text('["packages/gone/README.md".skip]\na = "b"\n')
    with pytest.raises(DocumentError, match=r"packages/gone/README.md., no file; delete"):
        documents.rules_of("README.md", file)


def test_a_command_that_leaves_a_process_behind_ends_with_it(readme, folder):
    readme.write_text("```sh\nexec 3> gate; tail -f /dev/null &\n```\n")
    os.mkfifo(folder / "gate")
    gate = os.open(folder / "gate", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert walk(readme, Rules(), folder=folder) == 1
        # The end of the file comes when the last process that can write is gone.
        ended, _, _ = select.select([gate], [], [], HANG_S)
        assert ended, "the process lives on"
        assert os.read(gate, 1) == b""
    finally:
        os.close(gate)


def test_one_readme_that_fails_is_named_after_all_were_walked(tmp_path):
    for name, text in {"a": "```sh\nfalse\n```\n", "b": "```sh\ntrue\n```\n"}.items():
        file = tmp_path / "packages" / name / "README.md"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    script = tmp_path / "scripts" / "documents.py"
    script.parent.mkdir()
    shutil.copy(documents.__file__, script)
    script.with_suffix(".toml").touch()
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    subprocess.run(["git", "-C", str(tmp_path), "add", "packages"], check=True)
    line = [sys.executable, str(script)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "packages/b/README.md: 1 blocks ran" in done.stdout
    assert "false: exit code 1" in done.stderr
    assert done.stderr.endswith("failed: packages/a/README.md\n")


def test_every_readme_of_the_repository_is_walked_and_every_rule_fits():
    names = [readme.relative_to(documents.ROOT).as_posix() for readme in documents.readmes()]
    assert {"README.md", "CONTRIBUTING.md", "packages/kernels/native/README.md"} <= set(names)
    for name in names:
        planned((documents.ROOT / name).read_text(), documents.rules_of(name))

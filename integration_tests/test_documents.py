# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The walk of the READMEs: what it finds, what it runs in its place, what it refuses."""

import os
import select
from pathlib import Path

import pytest

import documents
from documents import DocumentError, blocks, planned, walk

pytestmark = pytest.mark.once

README = """# A package

    scripts/test

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
HANG_S = 120
RULES = {"replace": {"PLACEHOLDER": "0", "DIR": "{stdlib}"}, "skip": SKIP}


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
    assert [(block.is_command, block.text.strip(), block.output) for block in blocks(README)] == [
        (True, "scripts/test", ""),
        (False, 'open("made", "w").write("DIR")', ""),
        (True, "cat made | tr a-z A-Z", "/.../PYTHON...\n"),
        (True, 'python -c "import sys;      sys.exit(PLACEHOLDER)"', ""),
        (True, "test -f made", ""),
        (True, "echo 'of the two' > second", ""),
    ]


@pytest.mark.parametrize("programs, count", [(False, 5), (True, 1)])
def test_all_of_it_or_the_programs_run_in_one_directory(readme, folder, programs, count):
    assert walk(readme, RULES, folder=folder, programs=programs) == count
    assert Path((folder / "made").read_text()).joinpath("json").is_dir()
    assert (folder / "second").exists() != programs
    assert (folder / "README.md").read_text() == README
    assert list(readme.parent.iterdir()) == [readme]


@pytest.mark.parametrize(
    "text, message",
    [
        ("```console\n$ dovetial train\n```\n", "exit code 127\n.*dovetial: command not found"),
        ("```python\nimport dovetial\n```\n", "No module named 'dovetial'"),
        ("ends with\n\n    all passed\n", "all: command not found"),
        ("```console\n$ echo 5\n6\n```\n", "the README says\n6\nand it printed\n5\n"),
        ("```console\n$ echo 5 >&2\n5\n```\n", "the README says\n5\nand it printed\n\n$"),
    ],
)
def test_a_block_that_does_not_do_what_is_printed_fails(readme, folder, text, message):
    readme.write_text(f"# A package\n\n{text}")
    with pytest.raises(DocumentError, match=f"(?s){message}"):
        walk(readme, {}, folder=folder)


@pytest.mark.parametrize(
    "text, message",
    [
        ("```bash\nls\n```\n", "got 'bash' before 'ls'"),
        ("```python\n1\n", "a fence is indented or has no end: '```python'"),
        ("```console\nls\n$ ls\n```\n", "begins with a command after '. '; got 'ls"),
    ],
)
def test_a_block_that_would_be_passed_over_is_refused(text, message):
    with pytest.raises(DocumentError, match=message):
        blocks(f"# A package\n\n{text}")


@pytest.mark.parametrize(
    "rules, stale",
    [
        ({"skip": {"scripts/toast": "gone"}}, "scripts/toast"),
        ({"replace": {"FOLDER": "x"}}, "FOLDER"),
        ({"replace": {"scripts": "x"}, "skip": SKIP}, "scripts"),  # the skipped is not replaced
    ],
)
def test_a_rule_that_fits_nothing_is_refused(rules, stale):
    with pytest.raises(DocumentError, match=f"nothing in the README fits the rule '{stale}'"):
        planned(README, rules)


def test_a_command_that_leaves_a_process_behind_ends_with_it(readme, folder):
    readme.write_text("```sh\nexec 3> gate; tail -f /dev/null &\n```\n")
    os.mkfifo(folder / "gate")
    gate = os.open(folder / "gate", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert walk(readme, {}, folder=folder) == 1
        # The end of the file comes when the last process that can write is gone.
        ended, _, _ = select.select([gate], [], [], HANG_S)
        assert ended, "the process lives on"
        assert os.read(gate, 1) == b""
    finally:
        os.close(gate)


def test_one_readme_that_fails_is_named_after_all_were_walked(tmp_path, monkeypatch, capsys):
    files = [tmp_path / "a.md", tmp_path / "b.md"]
    for file, text in zip(files, ("false", "true"), strict=True):
        file.write_text(f"```sh\n{text}\n```\n")
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    monkeypatch.setattr(documents, "rules_of", lambda name: {})
    monkeypatch.setattr("sys.argv", ["documents.py", *map(str, files)])
    assert documents.main() == 1
    printed = capsys.readouterr()
    assert "b.md: 1 blocks ran" in printed.out
    assert printed.err.endswith("failed: a.md\n")


def test_every_readme_of_the_repository_is_walked_and_every_rule_fits():
    names = [readme.relative_to(documents.ROOT).as_posix() for readme in documents.readmes()]
    assert {"README.md", "CONTRIBUTING.md", "packages/kernels/native/README.md"} <= set(names)
    for name in names:
        planned((documents.ROOT / name).read_text(), documents.rules_of(name))

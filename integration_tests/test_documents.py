# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The walk of the READMEs: what it finds, what it runs in its place, what it refuses."""

from pathlib import Path

import pytest

import documents
from documents import DocumentError, Rules, blocks, planned, walk

README = """# A package

    scripts/test

ends with

    scripts/test: all 8 checks passed

```python
open("made", "w").write("DIR")
```

```console
$ python -c "print(open('made').read())"      # a comment
the output, which is not run
$ python -c "import sys; sys.exit(PLACEHOLDER)"
```

```toml
not = "run"
```
"""


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
    assert [(block.kind, block.text.splitlines()[0]) for block in blocks(README)] == [
        ("command", "scripts/test"),
        ("program", 'open("made", "w").write("DIR")'),
        ("command", "python -c \"print(open('made').read())\""),
        ("command", 'python -c "import sys; sys.exit(PLACEHOLDER)"'),
    ]


def test_all_of_it_runs_in_one_directory(readme, folder, capfd):
    rules = Rules(replace={"PLACEHOLDER": "0", "DIR": "{stdlib}"}, skip={"scripts/test": "here"})
    assert walk(readme, rules, folder=folder) == 3
    assert Path((folder / "made").read_text()).joinpath("json").is_dir()
    assert (folder / "README.md").read_text() == README
    assert list(readme.parent.iterdir()) == [readme]


def test_a_placeholder_without_a_rule_fails_with_what_was_printed(readme, folder):
    with pytest.raises(DocumentError, match="exit code 1") as error:
        walk(readme, Rules(skip={"scripts/test": "here"}), folder=folder)
    assert "NameError: name 'PLACEHOLDER' is not defined" in str(error.value)


def test_a_command_that_is_not_there_fails(readme, folder):
    readme.write_text("```console\n$ dovetial train\n```\n")
    with pytest.raises(DocumentError, match="no such command: dovetial"):
        walk(readme, Rules(), folder=folder)


@pytest.mark.parametrize(
    "rules, stale",
    [
        (Rules(skip={"scripts/toast": "gone"}), "scripts/toast"),
        (Rules(replace={"FOLDER": "x"}), "FOLDER"),
        # What is skipped is not replaced.
        (Rules(replace={"scripts": "x"}, skip={"scripts/test": "here"}), "scripts"),
    ],
)
def test_a_rule_that_fits_nothing_is_refused(rules, stale):
    with pytest.raises(DocumentError, match=f"no command of the README has '{stale}'; delete"):
        list(planned(README, rules))


def test_rules_for_a_file_that_is_gone_are_refused(tmp_path):
    file = tmp_path / "documents.toml"
    file.write_text('["packages/gone/README.md".skip]\na = "b"\n')
    with pytest.raises(DocumentError, match=r"packages/gone/README.md., no file; delete"):
        documents.rules_of("README.md", file)


def test_every_rule_of_the_repository_fits():
    for readme in [documents.ROOT / "README.md", *documents.ROOT.glob("packages/*/README.md")]:
        name = readme.relative_to(documents.ROOT).as_posix()
        list(planned(readme.read_text(), documents.rules_of(name)))

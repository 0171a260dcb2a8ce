# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The walk of the READMEs: the blocks that it runs, and those that it refuses."""

import os
import select
import tomllib

import pytest

import documents
from documents import DocumentError, planned, walk
from workspace import ROOT

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
```

```toml
not = "run"
```
"""
SKIP = {"scripts/test": "it takes minutes"}
RULES = {"replace": {"PLACEHOLDER": "0", "DIR": "/usr/python3"}, "skip": SKIP}
HANG_S = 120


@pytest.fixture
def readme(tmp_path):
    (tmp_path / "run").mkdir()
    file = tmp_path / "README.md"
    file.write_text(README)
    return file


@pytest.mark.parametrize("programs, count", [(False, 4), (True, 1)])
def test_all_blocks_or_the_programs_run_in_one_directory(readme, programs, count):
    folder = readme.parent / "run"
    assert walk(readme, RULES, folder=folder, programs=programs) == count
    assert (folder / "made").read_text() == "/usr/python3"


@pytest.mark.parametrize(
    "text, message",
    [
        ("```python\nimport dovetial\n```\n", "exit code 1"),
        ("ends with\n\n    all passed\n", "exit code 127"),
        ("```console\n$ echo 5\n6\n```\n", "the README says\n6\nand it printed\n5\n"),
        ("```bash\nls\n```\n", "of no known kind; got 'bash'"),
        ("- a list\n  ```python\n  1\n  ```\n", "a fence must start its line"),
    ],
)
def test_a_block_that_fails_or_would_be_passed_over_is_an_error(readme, text, message):
    readme.write_text(f"# A package\n\n{text}")
    with pytest.raises(DocumentError, match=message):
        walk(readme, {}, folder=readme.parent / "run")


@pytest.mark.parametrize("rules", [{"skip": {"scripts/toast": ""}}, {"replace": {"FOLDER": "x"}}])
def test_a_rule_that_fits_nothing_is_refused(rules):
    with pytest.raises(DocumentError, match="nothing in the README fits the rule"):
        planned(README, rules)


def test_a_process_left_behind_is_killed(readme):
    folder = readme.parent / "run"
    readme.write_text("```sh\nexec 3> gate; tail -f /dev/null &\n```\n")
    os.mkfifo(folder / "gate")
    gate = os.open(folder / "gate", os.O_RDONLY | os.O_NONBLOCK)
    assert walk(readme, {}, folder=folder) == 1
    # The pipe ends when the last process that can write is gone.
    assert select.select([gate], [], [], HANG_S)[0], "the process lives on"
    assert os.read(gate, 1) == b""
    os.close(gate)


def test_every_rule_fits_its_readme():
    rules = tomllib.loads(documents.RULES.read_text())
    names = [readme.relative_to(ROOT).as_posix() for readme in documents.readmes()]
    assert rules.keys() <= {*names}
    for name in names:
        planned((ROOT / name).read_text(), rules.get(name, {}))

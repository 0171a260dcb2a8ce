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


def test_all_blocks_or_the_programs_run_in_one_directory_and_every_rule_must_fit(readme):
    folder = readme.parent / "run"
    assert walk(readme, RULES, folder=folder, programs=True) == 1
    assert walk(readme, RULES, folder=folder) == 4
    assert (folder / "made").read_text() == "/usr/python3"
    for rules in ({"skip": {"scripts/toast": ""}}, {"replace": {"FOLDER": "x"}}):
        with pytest.raises(DocumentError, match="nothing in the README fits the rule"):
            planned(README, rules)


@pytest.mark.parametrize(
    "text, message",
    [
        ("```python\nimport dovetial\n```\n", "exit code 1"),
        ("ends with\n\n    all passed\n", "exit code 127"),
        ("```console\n$ echo 5\n6\n```\n", "the README says\n6\nand it printed\n5\n"),
        ("```{code-cell} python\nimport dovetial\n```\n", "exit code 1"),
        ("```bash\nls\n```\n", "of no known kind; got 'bash'"),
        ("- a list\n  ```python\n  1\n  ```\n", "a fence must start its line"),
    ],
)
def test_a_block_that_fails_or_would_be_passed_over_is_an_error(readme, text, message):
    readme.write_text(f"# A package\n\n{text}")
    with pytest.raises(DocumentError, match=message):
        walk(readme, {}, folder=readme.parent / "run")


def test_a_process_left_behind_is_killed(readme):
    folder = readme.parent / "run"
    readme.write_text("```sh\nexec 3> gate; tail -f /dev/null &\n```\n")
    os.mkfifo(folder / "gate")
    with open(os.open(folder / "gate", os.O_RDONLY | os.O_NONBLOCK), "rb") as gate:
        assert walk(readme, {}, folder=folder) == 1
        # The pipe ends when the last process that can write is gone.
        assert select.select([gate], [], [], HANG_S)[0], "the process lives on"
        assert gate.read(1) == b""


def test_in_a_clone_commands_find_the_readers_path_and_programs_the_clones_python(readme):
    clone = readme.parent / "run"
    python = clone / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$2" > "$0".ran\n')
    python.chmod(0o755)
    page = '    echo "$PATH" > path\n\n```{toctree}\ninstall\n```\n'
    readme.write_text(f"# A page\n\n{page}\n```{{code-cell}} python\nprint(5)\n```\n")
    assert walk(readme, {}, folder=clone, clone=True) == 2
    assert (clone / "path").read_text() == f"{os.environ['PATH']}\n"
    assert (clone / ".venv/bin/python.ran").read_text().strip() == "print(5)"
    assert not (clone / "README.md").exists()  # it would replace the clone's own


HEAD = "| a | b |\n|---|---:|\n"
TABLES = {
    "README.md": HEAD,
    "packages/one/README.md": f"{HEAD}| x |  |\n| y | |\n",
    "packages/one/native/README.md": f"{HEAD}|| 1 |\n",
    "docs/howto/page.md": f"{HEAD}| x | <!-- figure: y --><!-- --> |\n",
    "docs/generated/deep/table.txt": HEAD,
}
FILLED = f"""{HEAD}| x | <!-- figure: y -->1<!-- --> |

{HEAD}| x | |\n| | `1 \\| 2` |

```text
{HEAD}```
"""


def test_a_table_without_a_row_or_with_an_empty_column_is_refused(tmp_path):
    for page, table in TABLES.items():
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text(f"# Title\n\n{FILLED}\n{table}")
    assert sorted(documents.empty_tables(tmp_path)) == sorted(f"{p}: | a | b |" for p in TABLES)
    # The build of the site looks at the pages that it generates.
    generated = ("docs/generated", "docs/packages/measured", "docs/packages/families")
    assert [t for t in documents.empty_tables() if not t.startswith(generated)] == []


def test_every_rule_fits_its_readme():
    rules = tomllib.loads(documents.RULES.read_text())
    texts = {f.relative_to(ROOT).as_posix(): f.read_text() for f in documents.readmes()}
    texts["docs/index.md"] = (ROOT / "docs/index.md").read_text()
    assert rules.keys() <= texts.keys()
    for name, text in texts.items():
        planned(text, rules.get(name, {}))
        planned(text, {"replace": rules.get(name, {}).get("clone", {})})

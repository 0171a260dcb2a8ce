# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail_data


def test_importing_it_imports_neither_grain_nor_jax():
    program = "import sys, dovetail_data; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert not {"grain", "jax", "tokenizers"} & set(run.stdout.split())


@pytest.mark.parametrize("name", ["batches", "pack", "pad", "text", "jsonl", "write"])
def test_functions_are_not_hidden_by_modules_of_their_name(name):
    assert callable(getattr(dovetail_data, name))


def test_the_program_of_the_readme_runs_as_printed(tmp_path):
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    (tmp_path / "README.md").write_text(readme)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert "'tokens': ((8, 128), dtype('int32'))" in run.stdout
    assert "{'row': 8, 'fingerprint': 'corpus=" in run.stdout

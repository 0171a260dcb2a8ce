# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

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

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""scripts/tiers.py: the tests of each tier, and the outcomes by file."""

import json

import pytest

pytestmark = pytest.mark.once

FIRST = """
import os, pytest
level = "low" if os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS") else "high"

@pytest.mark.parametrize("n", range(6))
def test_many(n): print("ran many")

@pytest.mark.thorough
@pytest.mark.parametrize("n", range(3))
def test_long(n): print("ran long")

def test_level(): print("ran", level)
"""
SECOND = """
import pytest
pytestmark = pytest.mark.thorough
def test_second(): print("ran second")
"""


@pytest.mark.parametrize(
    "tier, expected",
    [
        ("fast", {"many": 1, "low": 1}),
        ("thorough", {"many": 5, "long": 3, "second": 1}),
        ("sample", {"many": 1, "long": 1, "high": 1, "second": 1}),
        ("", {"many": 6, "long": 3, "high": 1, "second": 1}),
    ],
)
def test_a_run_of_a_tier(checkout, tier, expected):
    checkout.write(FIRST)
    checkout.write(SECOND, "test_second.py")
    output = checkout.run("-rP", *(["--tier", tier] if tier else []))
    words = [line.split()[1] for line in output.splitlines() if line.startswith("ran ")]
    assert {word: words.count(word) for word in words} == expected


def test_the_outcome_of_each_file_is_written(checkout):
    texts = {"first": FIRST, "second": "def test_bad(): assert 1 == 2\n", "third": ""}
    for name, text in texts.items():
        checkout.write(text, f"test_{name}.py")
    files = [f"packages/one/tests/test_{name}.py" for name in texts]
    checkout.run("--tier", "sample", "--outcomes", "out/file.json", *files, code=1)
    found = json.loads((checkout.root / "out/file.json").read_text())
    passed = {name: outcome["passed"] for name, outcome in found.items()}
    assert passed == {"test_first.py": True, "test_second.py": False, "test_third.py": True}
    checkout.write("import no_such_module\n", "test_third.py")
    checkout.run("--tier", "sample", "--outcomes", "out/none.json", *files, code=2)
    assert not (checkout.root / "out/none.json").exists()

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dovetail_data._arguments import (
    require_integer,
    require_integers,
    require_name,
    require_path,
    wrong,
)

PROGRAM = Path(__file__).parent / "programs" / "arguments.py"


@pytest.mark.thorough
def test_every_wrong_type_is_answered_with_what_to_pass(tmp_path):
    """Over a hundred arguments of public functions, each with values of eleven kinds."""
    run = subprocess.run(
        [sys.executable, PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.stderr == ""
    *unanswered, count = run.stdout.splitlines()
    assert unanswered == []
    assert int(count.split()[0]) > 100


def test_the_three_parts():
    message = "steps must be an integer: got steps='x' of type str. Pass 1."
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        require_integer("steps", "x", "Pass 1.")
    message = "steps must be >= 1: got steps=0. Pass 1."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        require_integer("steps", 0, "Pass 1.", least=1)
    assert str(wrong("a", "a thing", [1], "Pass it.")) == (
        "a must be a thing: got a=[1] of type list. Pass it."
    )


@pytest.mark.parametrize("value", ["16", " -3", 16.0, np.float32(4)])
def test_texts_and_floats_that_hold_an_integer_are_answered_with_it(value):
    message = rf"must be an integer: got length={re.escape(repr(value))} of type .*\. Pass length="
    with pytest.raises(TypeError, match=message + rf"{int(value)}\.$"):
        require_integer("length", value, "Pass 1.")


@pytest.mark.parametrize("value", [1, np.int32(2), np.uint64(3)])
def test_integers_of_numpy_are_integers(value):
    require_integer("n", value, "", least=1)


@pytest.mark.parametrize("value", [True, np.bool_(True), 1.0, np.float32(1), "1", None])
def test_nothing_else_is_an_integer(value):
    with pytest.raises(TypeError, match=r"n must be an integer: got n="):
        require_integer("n", value, "")


@pytest.mark.parametrize("values", [[1, 2], (1, 2), range(1, 3), np.array([1, 2], np.uint8)])
def test_sequences_of_integers(values):
    numbers = require_integers("n", values)
    assert (numbers.dtype, numbers.tolist()) == (np.int64, [1, 2])
    assert require_integers("n", []).tolist() == []


@pytest.mark.parametrize("values", [1, "12", b"12", {1: 2}, [1.0], [[1], [1, 2]], [True], None])
def test_no_sequences_of_integers(values):
    with pytest.raises(TypeError, match=r"n must be a sequence of integers: got n=.*\. Pass numb"):
        require_integers("n", values)


def test_paths_and_names():
    assert require_path("p", "a/b") == require_path("p", Path("a/b")) == Path("a/b")
    with pytest.raises(TypeError, match=r"p must be a path: got p=3 of type int\. Pass a str"):
        require_path("p", 3)
    with pytest.raises(TypeError, match=r"f must be a string: got f=3 of type int\. Pass .* f='t'"):
        require_name("f", 3, "t")

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from dovetail_runs.words import words


@pytest.mark.parametrize(
    "name, said",
    [
        ("grad_norm", "gradient norm"),
        ("seconds/compile", "compiling"),
        ("seconds/own_part", "own part"),
        ("eval/bits_per_byte", "evaluation: bits per byte"),
        ("guard/skips/loss", "guard: skips: loss"),
        ("own_rate", "own rate"),
    ],
)
def test_names_of_a_log_are_said_in_words(name, said):
    assert words(name) == said

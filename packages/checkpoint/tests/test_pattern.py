# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_checkpoint.pattern import Pattern


@pytest.mark.parametrize(
    ("pattern", "name", "captures"),
    [
        ("a/b", "a/b", ()),
        ("a/b", "a/b/c", None),
        ("a/*", "a/b", ("b",)),
        ("a/*", "a/b/c", None),
        ("a/*/c", "a/b/c", ("b",)),
        ("h_*/w", "h_12/w", ("12",)),
        ("**", "a/b", ("a/b",)),
        ("**", "a", ("a",)),
        ("a/**", "a/b/c", ("b/c",)),
        ("a/**", "a", ("",)),
        ("a/**", "ab/c", None),
        ("**/w", "w", ("",)),
        ("**/w", "a/b/w", ("a/b",)),
        ("a/**/w", "a/w", ("",)),
        ("a/**/w", "a/b/c/w", ("b/c",)),
        ("**/x/**", "a/x/b/c", ("a", "b/c")),
        ("layers/#/w", "layers/10/w", ("10",)),
        ("layers/#/w", "layers/01/w", None),
        ("layers/#/w", "layers/x/w", None),
        ("block_#", "block_3", ("3",)),
        ("model.layers.*.w", "model/layers/0/w", ("0",)),
        ("a+/(b)", "a+/(b)", ()),
        ("a/?", "a/b", None),
        ("", "", ()),
    ],
)
def test_wildcards_match_levels(pattern, name, captures):
    assert Pattern(pattern).captures(name) == captures


@pytest.mark.parametrize(
    ("pattern", "captures", "name"),
    [
        ("a/b", (), "a/b"),
        ("h_*/**", ("3", "x/w"), "h_3/x/w"),
        ("a/**/w", ("",), "a/w"),
        ("**/w", ("",), "w"),
        ("block.#.w", ("7",), "block/7/w"),
    ],
)
def test_captures_fill_another_pattern(pattern, captures, name):
    assert Pattern(pattern).fill(captures) == name


LEVEL = st.text("ab0", min_size=1, max_size=3)
NAME = st.lists(LEVEL, min_size=1, max_size=5).map("/".join)


@settings(deadline=None)
@given(NAME, st.lists(st.sampled_from(["a", "b0", "*", "**", "#", "a*"]), min_size=1, max_size=5))
def test_what_matched_fills_the_same_pattern_again(name, levels):
    pattern = Pattern("/".join(levels))
    captures = pattern.captures(name)
    if captures is not None:
        assert pattern.fill(captures) == name
        assert len(captures) == len(pattern.wildcards)


@settings(deadline=None)
@given(NAME)
def test_every_name_matches_two_stars_and_itself(name):
    assert Pattern("**").captures(name) == (name,)
    assert Pattern(name).captures(name) == ()


def test_two_stars_within_a_level_are_refused():
    with pytest.raises(ValueError, match=r"whole level .* got 'a/b\*\*'; write \*"):
        Pattern("a/b**")


def test_a_pattern_is_a_string(unchecked):
    with pytest.raises(TypeError, match="a pattern must be a string, got int; write"):
        Pattern(3)

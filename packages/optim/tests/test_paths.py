# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax.numpy as jnp
import pytest
from flax import nnx

from dovetail_optim import paths


def test_a_parameter_has_one_name_as_state_as_pure_dict_and_as_tuple():
    class Value(nnx.Module):
        """A layer whose parameter is called as Flax's attribute is."""

        def __init__(self):
            self.value = nnx.Param(jnp.zeros(3))
            self.layers = nnx.List([nnx.Linear(2, 3, rngs=nnx.Rngs(0)) for _ in range(2)])

    state = nnx.state(Value(), nnx.Param)
    expected = ["layers/0/bias", "layers/0/kernel", "layers/1/bias", "layers/1/kernel", "value"]
    assert paths.names(state) == expected
    assert paths.names(nnx.to_pure_dict(state)) == expected
    assert paths.names(nnx.as_pure(state)) == expected
    assert paths.names(({"a": 1.0}, [2.0, None])) == ["0/a", "1/0"]
    assert paths.names(1.0) == [""]


@pytest.mark.parametrize(
    "pattern, right, wrong",
    [
        ("**", ["", "a", "a/b/c"], []),
        ("*", ["a"], ["", "a/b"]),
        ("**/bias", ["bias", "a/bias", "a/b/bias"], ["bias/a", "abias", "a/bias2"]),
        ("layers/*/kernel", ["layers/0/kernel"], ["layers/kernel", "layers/0/q/kernel"]),
        ("layers/**", ["layers/0", "layers/0/q/kernel"], ["layer/0", "a/layers/0"]),
        ("a/**/b/*_scale", ["a/b/q_scale", "a/x/y/b/_scale"], ["a/b/c/q_scale", "a/q_scale"]),
        ("a.c", ["a.c"], ["abc"]),
    ],
)
def test_stars_within_a_key_and_over_keys(pattern, right, wrong):
    assert [n for n in [*right, *wrong] if paths.matches(pattern, n)] == right


@pytest.mark.parametrize("pattern", ["", "/a", "a/", "a//b"])
def test_a_pattern_without_a_key_between_slashes_is_an_error(pattern):
    with pytest.raises(ValueError, match=rf"keys joined by single slashes.*got '{pattern}'"):
        paths.matches(pattern, "a")


def test_an_error_shows_eight_names_and_how_many_more():
    assert paths.few("abc") == "'a', 'b', 'c'"
    assert paths.few(map(str, range(11))).endswith("'7' and 3 more")


def test_near_names_come_first():
    known = ["layers/0/kernel", "embed/table", "layers/0/bias"]
    assert paths.near("layer/0/kernel", known).startswith("'layers/0/kernel'")


def test_leaves_are_picked_by_name_from_a_larger_tree():
    given = {"a": {"kernel": 1, "bias": 2}, "b": 3}
    assert paths.pick(given, {"b": "x", "a": {"kernel": "y"}}, what="shardings") == [1, 3]
    with pytest.raises(ValueError, match=r"shardings must name every parameter; got none for 'c'"):
        paths.pick(given, {"c": 0}, what="shardings")

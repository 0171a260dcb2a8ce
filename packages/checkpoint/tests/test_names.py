# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses
from typing import NamedTuple

import jax
import optax
import pytest

from dovetail_checkpoint.proof.names import leaf_names, match_names, plain


class Pair(NamedTuple):
    left: object
    right: object


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Point:
    x: object
    y: object


@jax.tree_util.register_pytree_node_class
class Opaque:
    """A node that gives its children no names."""

    def __init__(self, *children):
        self.children = children

    def tree_flatten(self):
        return self.children, None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def test_names_are_paths_in_leaf_order():
    tree = {"b": [1, (2,)], "a": Pair(3, Point(4, None)), "c": Opaque(5)}
    names, leaves, structure = leaf_names(tree)
    assert names == ["a/left", "a/right/x", "b/0", "b/1/0", "c/0"]
    assert leaves == [3, 4, 1, 2, 5]
    assert jax.tree.leaves(structure.unflatten(leaves)) == leaves


def test_slashes_in_keys_are_escaped_as_in_a_json_pointer():
    assert leaf_names({"a/b": 1, "a": {"b": 2}, "m~n": 3})[0] == ["a/b", "a~1b", "m~0n"]


def test_one_leaf_is_the_empty_name():
    assert leaf_names(3)[0] == [""]


def test_two_leaves_of_one_name_are_refused():
    @jax.tree_util.register_pytree_with_keys_class
    class Clash:
        def tree_flatten_with_keys(self):
            key = jax.tree_util.DictKey
            return ((key(0), 1), (key("0"), 2)), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls()

    with pytest.raises(ValueError, match=r"must have different names, got \['0'\].*rename a key"):
        leaf_names(Clash())


@pytest.mark.parametrize(
    ("names", "matched"),
    [
        (["a.b.c", "a.d"], ["a.b.c", "a.d"]),
        (["m/kernel/value", "m.bias.value"], ["m.kernel", "m.bias"]),
        (["m/kernel/value", "step"], ["m.kernel", "step"]),
        (["attn.query", "attn.value"], ["attn.query", "attn.value"]),
        (["value", "m.value.w"], ["value", "m.value.w"]),
        (["value"], ["value"]),
        ([""], [""]),
    ],
)
def test_names_of_different_writers_match(names, matched):
    assert match_names(names) == matched


def test_names_that_differ_in_dots_alone_are_refused():
    with pytest.raises(ValueError, match=r"different names .* got \['a.b', 'a.b'\]; rename one"):
        match_names(["a.b", "c", "a/b"])


def test_plain_trees_hold_dicts_and_lists_alone():
    tree = {
        "b": [1, (2,)],
        "a": Pair(3, Point(4, None)),
        "c": Opaque(5, {"k": 6}),
        "empty": [{}, [], (), optax.EmptyState(), None],
    }
    assert plain(tree, str) == {
        "a": {"left": "3", "right": {"x": "4", "y": None}},
        "b": ["1", ["2"]],
        "c": ["5", {"k": "6"}],
        "empty": [{}, [], None, None, None],
    }


def test_plain_calls_in_the_order_of_the_names():
    tree = {"z": [1, 2], "a": Pair(Point(3, 4), 5), "m": Opaque(6)}
    seen = []
    plain(tree, seen.append)
    assert seen == leaf_names(tree)[1]


def test_plain_of_one_leaf_is_the_leaf():
    assert plain(3, str) == "3"

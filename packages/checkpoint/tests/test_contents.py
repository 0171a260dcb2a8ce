# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_checkpoint.contents import contents
from dovetail_checkpoint.digest import hex_digests
from dovetail_checkpoint.manifest import decode


class State:
    """An object with the state that it is given."""

    def __init__(self, state):
        self.state = state

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


def test_trees_and_states_are_told_apart():
    made = contents({"model": {"w": jnp.ones(3)}, "data": State({"row": 3})}, {"loss": 0.5})
    assert made.trees.keys() == {"model"}
    assert made.documents == {"data": {"row": 3}}
    manifest = decode(made.manifest())
    assert (manifest.trees.keys(), manifest.objects.keys()) == ({"model"}, {"data"})
    assert manifest.metrics == {"loss": 0.5}


def test_what_orbax_refuses_stays_in_the_record():
    made = contents({"item": {"e": np.zeros((0, 3)), "w": np.ones(2)}, "none": ()}, {})
    assert made.trees.keys() == {"item"}
    assert made.trees["item"]["e"] is None
    leaves = {leaf[0]: leaf[1:3] for leaf in made.manifest()["trees"]["item"]["leaves"]}
    assert leaves == {"e": ["float64", [0, 3]], "w": ["float64", [2]]}


@pytest.mark.parametrize("name", ["step", "metrics", "dovetail", "a/b", ""])
def test_names_that_orbax_or_the_store_use_are_refused(name):
    with pytest.raises(ValueError, match=r"must be an identifier and none of .*got .*; give it an"):
        contents({name: jnp.ones(3)}, {})


def test_nothing_is_refused():
    with pytest.raises(ValueError, match=r"at least one item, got none; save\(step, model=state"):
        contents({}, {})


def test_a_leaf_that_is_no_array_is_named():
    with pytest.raises(TypeError, match=r"item/a.0: a leaf must be .*got type=str; give other"):
        contents({"item": {"a": ["llama"]}}, {})


def test_a_number_beyond_64_bits_is_named():
    with pytest.raises(
        ValueError, match=r"item/n: an int must fit in 64 bits, got 9223.*; keep it"
    ):
        contents({"item": {"n": 2**63}}, {})


@pytest.mark.parametrize(
    "state", [{1: 2}, {"t": (1, 2)}, {"x": float("nan")}, {"b": b"bytes"}, ["a"], None]
)
def test_a_state_that_json_changes_is_refused(state):
    with pytest.raises(TypeError, match=r"must be a dict that JSON .*got data=.*; change its get"):
        contents({"data": State(state)}, {})


def test_the_record_is_of_the_leaves_as_they_were():
    # Donated, changed, and put elsewhere in their containers before the manifest is asked for.
    arrays = {"jax": jnp.arange(70_000.0), "numpy": np.arange(70_000.0), "list": [jnp.ones(3)]}
    want = hex_digests([arrays["jax"], arrays["list"][0], arrays["numpy"]])
    made = contents({"item": arrays}, {})
    jax.jit(lambda x: x + 1, donate_argnums=0)(arrays["jax"]).block_until_ready()
    arrays["numpy"][:] = 0
    arrays["list"].append(jnp.zeros(2))
    leaves = decode(made.manifest()).trees["item"].leaves
    assert [leaf.name for leaf in leaves] == ["jax", "list/0", "numpy"]
    assert [leaf.digest for leaf in leaves] == want

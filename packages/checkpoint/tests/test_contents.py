# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_checkpoint.proof.digest import hex_digests
from dovetail_checkpoint.proof.manifest import Identity, decode, json_sha256
from dovetail_checkpoint.run.contents import check, contents

IDENTITY = Identity(step=3, run="0" * 32)


def make(items, **metrics):
    return contents(check(items), metrics=metrics, identity=IDENTITY)


def test_trees_and_states_are_told_apart(stateful):
    made = make({"model": {"w": jnp.ones(3)}, "data": stateful({"row": 3})}, loss=0.5)
    assert made.trees.keys() == {"model"}
    assert made.documents == {"data": {"row": 3}}
    manifest = decode(made.manifest())
    assert (manifest.trees.keys(), manifest.objects.keys()) == ({"model"}, {"data"})
    assert manifest.metrics == {"loss": 0.5}
    assert manifest.identity == IDENTITY


def test_what_orbax_refuses_stays_in_the_record():
    made = make({"item": {"e": np.zeros((0, 3)), "w": np.ones(2)}, "none": ()})
    assert made.trees.keys() == {"item"}
    assert made.trees["item"]["e"] is None
    leaves = {leaf[0]: leaf[1:3] for leaf in made.manifest()["trees"]["item"]["leaves"]}
    assert leaves == {"e": ["float64", [0, 3]], "w": ["float64", [2]]}


def test_big_endian_arrays_are_stored_and_digested_in_the_machines_order():
    big = np.arange(5, dtype=">f4")
    made = make({"item": [big]})
    assert made.trees["item"][0].dtype == np.dtype("float32")
    np.testing.assert_array_equal(made.trees["item"][0], big)
    (leaf,) = decode(made.manifest()).trees["item"].leaves
    assert (leaf.dtype, leaf.digest) == ("float32", *hex_digests([np.arange(5, dtype="<f4")]))


def test_a_state_is_copied_at_the_call(stateful):
    state = {"row": 3, "order": [1, 2]}
    made = make({"data": stateful(state)})
    state["row"] = 4
    state["order"].append(3)
    assert made.documents == {"data": {"row": 3, "order": [1, 2]}}
    assert decode(made.manifest()).objects["data"].sha256 == json_sha256(made.documents["data"])


def test_an_entry_that_is_no_leaf_is_named():
    with pytest.raises(TypeError, match=r"item/a.0: a leaf must be .*got type=bytes; give other"):
        check({"item": {"a": [b"llama"]}})


def test_keys_that_jax_cannot_sort_name_the_item():
    with pytest.raises(ValueError, match=r"^item: .*pytree"):
        check({"item": {0: jnp.ones(3), "a": jnp.ones(3)}})


@pytest.mark.parametrize("levels", [101, 700, 3000])
def test_a_tree_of_too_many_levels_is_refused(levels):
    tree = jnp.ones(3)
    for _ in range(levels):
        tree = [tree]
    with pytest.raises(ValueError, match=r"^item: a tree must have at most 100 levels.*; flatten"):
        check({"item": tree})


def test_the_record_is_of_the_leaves_as_they_were():
    # Donated, changed, and put elsewhere in their containers before the manifest is asked for.
    arrays = {"jax": jnp.arange(70_000.0), "numpy": np.arange(70_000.0), "list": [jnp.ones(3)]}
    want = hex_digests([arrays["jax"], arrays["list"][0], arrays["numpy"]])
    made = make({"item": arrays})
    jax.jit(lambda x: x + 1, donate_argnums=0)(arrays["jax"]).block_until_ready()
    arrays["numpy"][:] = 0
    arrays["list"].append(jnp.zeros(2))
    leaves = decode(made.manifest()).trees["item"].leaves
    assert [leaf.name for leaf in leaves] == ["jax", "list/0", "numpy"]
    assert [leaf.digest for leaf in leaves] == want

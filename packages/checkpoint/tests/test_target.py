# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_checkpoint import Store, load
from dovetail_checkpoint.layout import target
from dovetail_checkpoint.proof.manifest import Items, Leaf, ObjectItem, TreeItem


def items(**leaves):
    described = tuple(
        Leaf(name=name, dtype=dtype, shape=shape, digest=None)
        for name, (dtype, shape) in leaves.items()
    )
    tree = {name: i for i, name in enumerate(leaves)}
    return Items(trees={"item": TreeItem(tree=tree, leaves=described)}, objects={})


def test_what_was_saved_is_accepted():
    saved = items(w=("float32", (3,)), i=("python int", ()), h=("float64", (2,)))
    target.check(saved, {"item": {"w": jnp.ones(3), "i": 0, "h": np.ones(2)}})
    target.check(saved, {"item": {"w": jnp.ones(3), "i": jnp.int32(0), "h": np.ones(2)}})


@pytest.mark.parametrize(
    "wanted, line",
    [
        (jnp.ones((3, 1)), r"item/w: saved float32\[3\], wanted float32\[3, 1\]"),
        (jnp.ones(3, jnp.bfloat16), r"item/w: saved float32\[3\], wanted bfloat16\[3\]"),
        (1.0, r"item/w: saved float32\[3\], wanted python float\[\]"),
    ],
)
def test_the_leaf_that_differs_is_named_with_both_sides(wanted, line):
    with pytest.raises(ValueError, match=rf"(?s)must have the leaves.*{line}.*build the target"):
        target.check(items(w=("float32", (3,))), {"item": {"w": wanted}})


@pytest.mark.parametrize(
    ("saved", "wanted", "pairs"),
    [
        (["a", "b/c"], ["b/c", "a"], {"a": "a", "b/c": "b/c"}),
        (["a/value", "b/0/value"], ["a", "b/0"], {"a/value": "a", "b/0/value": "b/0"}),
        (["a", "b.0"], ["a/value", "b/0/value"], {"a": "a/value", "b.0": "b/0/value"}),
        (["a/value"], ["a/value", "a/other"], {"a/value": "a/value"}),  # no last level of NNX
        (["a", "b"], ["b", "c"], {"b": "b"}),
        (["a.b", "a/b"], ["a/b", "a.b"], {"a.b": "a.b", "a/b": "a/b"}),
        (
            ["a.b", "a/b", "c"],
            ["a/b", "c/value"],
            {"a/b": "a/b"},
        ),  # only equal names tell them apart
    ],
)
def test_names_go_together(saved, wanted, pairs):
    assert target.matches(saved, wanted) == pairs


def test_the_leaf_that_differs_is_named_as_wanted():
    saved = items(w=("float32", (3,)))
    with pytest.raises(ValueError, match=r"item/w: saved float32\[3\], wanted float32\[4\]"):
        target.check(saved, {"item": {"w": {"value": jnp.ones(4)}}})


def test_leaves_of_one_side_are_listed_and_long_lists_are_cut():
    wanted = {f"v{i:02}": jnp.ones(3) for i in range(20)}
    with pytest.raises(ValueError, match="another model") as caught:
        target.check(items(w=("float32", (3,))), {"item": wanted})
    lines = str(caught.value).splitlines()
    assert lines[1] == "  item/v00: wanted, not saved"
    assert lines[-2] == "  and 11 more"
    with pytest.raises(ValueError, match="item/w: saved, not wanted"):
        target.check(items(w=("float32", (3,))), {"item": {}})


def test_an_item_that_was_not_saved_is_named():
    with pytest.raises(
        ValueError,
        match=r"among the saved .* got \['x'\]; this step holds \['item'\]; restore\(item=",
    ):
        target.check(items(), {"x": {}})


def test_objects_and_trees_do_not_mix(position):
    objects = Items(trees={}, objects={"data": ObjectItem(shared=True, sha256=None)})
    with pytest.raises(ValueError, match="data: saved an object's state, wanted dict"):
        target.check(objects, {"data": {}})
    with pytest.raises(ValueError, match="item: saved a pytree, wanted Position"):
        target.check(items(), {"item": position(0)})


@pytest.mark.parametrize("dtype", [">f8", pytest.param("<f8", marks=pytest.mark.thorough)])
def test_a_dtype_that_jax_would_narrow_is_refused(dtype):
    wanted = jax.ShapeDtypeStruct((2,), np.dtype(dtype))
    with pytest.raises(ValueError, match="float64 needs jax_enable_x64; give a NumPy array"):
        target.check(items(h=("float64", (2,))), {"item": {"h": wanted}})


def test_the_default_device_is_the_sharding_of_one_process():
    assert target.sharding(jax.ShapeDtypeStruct((3,), jnp.float32)) == jnp.zeros(()).sharding


def test_several_processes_need_shardings(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=r"must have a sharding, got sharding=None .*; give jax"):
        target.sharding(jax.ShapeDtypeStruct((3,), jnp.float32))


def test_an_abstract_array_of_the_other_byte_order_is_restored_in_that_of_the_machine(tmp_path):
    tree = {
        "w": np.arange(6, dtype="f4").reshape(2, 3),
        "i": np.arange(3, dtype="i4"),
        "h": np.arange(3, dtype="f2"),
        "c": np.arange(3, dtype="c8"),
        "empty": np.zeros((0, 2), "f4"),
        "number": 2.5,
    }
    with Store(tmp_path) as store:
        store.save(1, model=tree)
        wanted = {
            name: jax.ShapeDtypeStruct(np.shape(x), np.asarray(x).dtype.newbyteorder(">"))
            for name, x in tree.items()
        }
        wanted["number"] = jax.ShapeDtypeStruct((), ">f4")
        restored = store.restore(model=wanted)[1]["model"]
    for result in (restored, load(tmp_path / "1", wanted)):
        for name, x in tree.items():
            assert isinstance(result[name], jax.Array)
            assert result[name].dtype == wanted[name].dtype.newbyteorder("=")
            np.testing.assert_array_equal(result[name], x)

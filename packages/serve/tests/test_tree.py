# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Weights are flattened to dotted names, and rebuilt to the same tree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_serve.bundle.arrays import map_arrays, places, write_arrays
from dovetail_serve.bundle.tree import flatten

W = np.random.default_rng(0).normal(size=(2, 3)).astype("float32")

NAMES = st.text("abc", min_size=1, max_size=3)
LEAVES = st.builds(
    lambda seed, shape: np.random.default_rng(seed).normal(size=shape).astype("float32"),
    st.integers(0, 1000),
    st.sampled_from([(), (2,), (1, 3), (0, 2)]),
)
TREES = st.recursive(
    LEAVES,
    lambda trees: st.one_of(
        st.dictionaries(NAMES, trees, max_size=3),
        st.dictionaries(st.integers(0, 20), trees, max_size=3),
        st.lists(trees, max_size=3),
        st.lists(trees, max_size=3).map(tuple),
    ),
    max_leaves=6,
)


@pytest.mark.thorough
@given(TREES)
@settings(max_examples=100, deadline=None)
def test_rebuilt_trees_are_equal(tree):
    flat = flatten(tree)
    rebuilt = flat.rebuild(flat.arrays)
    assert jax.tree.structure(rebuilt) == jax.tree.structure(tree)
    for leaf, other in zip(jax.tree.leaves(tree), jax.tree.leaves(rebuilt), strict=True):
        np.testing.assert_array_equal(leaf, other)


@pytest.mark.thorough
@given(TREES)
@settings(max_examples=50, deadline=None)
def test_trees_are_rebuilt_by_name_and_not_by_order(tree):
    flat = flatten(tree)
    reordered = dict(sorted(flat.arrays.items(), reverse=True))
    for leaf, other in zip(
        jax.tree.leaves(tree), jax.tree.leaves(flat.rebuild(reordered)), strict=True
    ):
        np.testing.assert_array_equal(leaf, other)


@pytest.mark.parametrize(
    ("tree", "names"),
    [
        ({"layers": [{"w": W}, {"w": W}]}, ["layers.0.w", "layers.1.w"]),
        ({"a.b": W, "c/d": W}, ["a.b", "c.d"]),
        ({2: W, 10: W}, ["2", "10"]),
        ((W, (W,)), ["0", "1.0"]),
        (W, ["value"]),
        ({}, []),
    ],
)
def test_names(tree, names):
    assert list(flatten(tree).arrays) == names


@pytest.mark.thorough
@pytest.mark.parametrize("of", [lambda s: s, nnx.to_pure_dict], ids=["state", "pure dictionary"])
def test_states_of_nnx(of):
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(3, 4, rngs=rngs), nnx.Dropout(0.1, rngs=rngs))
    graph, state = nnx.split(model)
    flat = flatten(of(state))
    assert sorted(flat.arrays) == [
        "layers.0.bias",
        "layers.0.kernel",
        "layers.1.rngs.count",
        "layers.1.rngs.key",
    ]
    assert flat.keys == {"layers.1.rngs.key": "threefry2x32"}
    rebuilt = nnx.merge(graph, flat.rebuild(flat.arrays))
    x = W
    np.testing.assert_array_equal(rebuilt(x), model(x))


@pytest.mark.thorough
@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_random_keys(implementation):
    key = jax.random.split(jax.random.key(3, impl=implementation), 2)
    flat = flatten({"key": key, "w": W})
    assert flat.keys == {"key": implementation}
    np.testing.assert_array_equal(flat.arrays["key"], jax.random.key_data(key))
    rebuilt = flat.rebuild(flat.arrays)["key"]
    assert rebuilt.dtype == key.dtype
    np.testing.assert_array_equal(
        jax.random.uniform(rebuilt[1], (3,)), jax.random.uniform(key[1], (3,))
    )


def test_trees_are_rebuilt_of_tracers():
    flat = flatten({"a": [W], "key": jax.random.key(0)})

    @jax.jit
    def fn(arrays):
        tree = flat.rebuild(arrays)
        return tree["a"][0] * 2, jax.random.uniform(tree["key"])

    doubled, uniform = fn(dict(flat.arrays))
    np.testing.assert_array_equal(doubled, W * 2)
    assert uniform == jax.random.uniform(jax.random.key(0))


@pytest.mark.parametrize(
    ("number", "dtype"), [(3, "int32"), (0.1, "float32"), (True, "bool"), (1j, "complex64")]
)
def test_python_numbers_are_arrays(number, dtype):
    array = flatten({"n": number}).arrays["n"]
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, np.asarray(number, dtype))


def test_python_numbers_that_are_not_finite_stay_so():
    assert np.isinf(flatten({"n": float("-inf")}).arrays["n"])
    assert np.isnan(flatten({"n": float("nan")}).arrays["n"])


@pytest.mark.parametrize("number", [2**40, -(2**40), 1e300])
def test_python_numbers_that_do_not_fit_are_refused(number):
    with pytest.raises(ValueError, match=r"must fit JAX's default dtype, got 'n': .*; pass np"):
        flatten({"n": number})
    with jax.enable_x64(True):
        assert flatten({"n": number}).arrays["n"] == number


@pytest.mark.parametrize(
    ("tree", "name"),
    [
        ({"a.b": W, "a": {"b": W}}, r"'a\.b'"),
        ({"x": {"y.0": W, "y": [W]}}, r"'x\.y\.0'"),
        ({"a/b": W, "a.b": W}, r"'a\.b'"),
    ],
)
def test_two_arrays_of_one_name_are_refused(tree, name):
    with pytest.raises(ValueError, match=f"name of its own, and {name} stands for .*; rename"):
        flatten(tree)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"__metadata__": W}, "must not be reserved by safetensors, got '__metadata__'; rename"),
        ({"a": {"\ud800": W}}, r"must be text that UTF-8 can hold, got 'a\.\\ud800'; rename that"),
    ],
)
def test_names_that_a_file_cannot_have_are_refused(tree, message):
    with pytest.raises(ValueError, match=f"the name of a weight {message}"):
        flatten(tree)


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", "a\0b", "\x1b[2J", "é\u2028", "*{}", "x" * 100_000]
)
def test_other_names_survive_a_file(name, tmp_path):
    flat = flatten({"a": {name: W}, "__metadata__": {"b": W}})
    write_arrays(tmp_path / "f", flat.arrays)
    mapped = map_arrays(
        tmp_path / "f", places(tmp_path / "f", dict.fromkeys(flat.arrays, "float32"))
    )
    rebuilt = flat.rebuild(mapped)
    np.testing.assert_array_equal(rebuilt["a"][name], W)


@pytest.mark.parametrize("dtype", [">f4", ">i2", ">c8"])
def test_arrays_of_another_byte_order_are_converted(dtype):
    given = (W * 100).astype(dtype)
    array = flatten({"w": given}).arrays["w"]
    assert array.dtype.isnative
    np.testing.assert_array_equal(array, given)
    np.testing.assert_array_equal(jnp.asarray(array), given.tolist())


@pytest.mark.parametrize("leaf", ["text", lambda x: x, object()])
def test_other_leaves_are_refused(leaf):
    with pytest.raises(TypeError, match=rf"and 'a.0' is a {type(leaf).__name__}; pass the arrays"):
        flatten({"a": [leaf]})


def test_abstract_arrays_are_refused():
    with pytest.raises(TypeError, match=r"'w' is ShapeDtypeStruct.*shape alone; restore"):
        flatten({"w": jax.ShapeDtypeStruct((2,), "float32")})


def test_deleted_arrays_are_refused():
    w = jnp.ones(3)
    w.delete()
    with pytest.raises(ValueError, match=r"'w' is a deleted array.*; pass the arrays"):
        flatten({"w": w})

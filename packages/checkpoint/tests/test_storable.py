# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A tree that `save` accepts is restored equal; any other is refused at the call, by name."""

import collections
import enum
import tempfile
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dovetail_checkpoint import Store, load, verify
from dovetail_checkpoint.run import storable

DTYPES = sorted(storable.DTYPES)
IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")


class Pair(NamedTuple):
    left: object
    right: object


def bits(shape, dtype, seed):
    """Random bits as an array: NaNs of all kinds, denormals, both zeros."""
    dtype = jnp.dtype(dtype)
    rng = np.random.default_rng(seed)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.name in ("int2", "int4", "float4_e2m1fn"):
        values = rng.integers(-2, 2, shape).astype(np.float32)
        return values.astype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(rng.bytes(size), dtype).reshape(shape).copy()


shapes = st.sampled_from([(), (0,), (1,), (3,), (0, 2), (1, 1), (2, 3), (2, 0, 3)])
dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 9)


@st.composite
def arrays(draw):
    dtype, shape, seed = draw(dtypes), draw(shapes), draw(seeds)
    array = bits(shape, dtype, seed)
    match draw(st.sampled_from(["jax", "numpy", "big", "scalar", "fortran"])):
        case "jax" if jax.dtypes.canonicalize_dtype(array.dtype) == array.dtype:
            return jnp.asarray(array)
        case "big" if array.dtype.kind in "iufc" and array.dtype.itemsize > 1:
            return array.astype(array.dtype.newbyteorder(">"))
        case "scalar" if array.size:
            return array.reshape(-1)[0]
        case "fortran":
            return np.asfortranarray(array)
        case _:
            return array


@st.composite
def keys(draw):
    shape = draw(st.sampled_from([(), (0,), (2,), (0, 3), (2, 1)]))
    key = jax.random.key(draw(seeds), impl=draw(st.sampled_from(IMPLEMENTATIONS)))
    return jax.random.split(key, shape) if shape else key


numbers = (
    st.integers(-(2**63), 2**63 - 1)
    | st.booleans()
    | st.floats(allow_nan=False)
    | st.sampled_from([float("nan"), -0.0])
)
names = st.text(alphabet="ab.0~/é日\x00 ", max_size=3) | st.sampled_from(
    ["", "a", "a.b", "a/b", "0", "1", "value", ".zarray", "a" * 300]
)


def grown(children):
    lists = st.lists(children, max_size=3)
    return (
        st.dictionaries(names, children, max_size=3)
        | st.dictionaries(st.integers(-1, 12), children, max_size=3)
        | lists
        | lists.map(tuple)
        | st.builds(Pair, children, children)
    )


trees = st.recursive(arrays() | keys() | numbers | st.none(), grown, max_leaves=8)


def abstract(tree):
    """A target without the values: only types, shapes and dtypes."""

    def one(leaf):
        if isinstance(leaf, jax.Array):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        return np.zeros_like(leaf) if isinstance(leaf, np.ndarray) else type(leaf)(0)

    return jax.tree.map(one, tree)


def refused(store, **items):
    """The error of the call; empty if the step is saved."""
    try:
        store.save(1, **items)
    except (ValueError, TypeError) as error:
        return str(error)
    return ""


def check_round_trip(tree, same):
    """Whether `save` took the tree; then every reader must return it."""
    with tempfile.TemporaryDirectory() as root, Store(root) as store:
        if refusal := refused(store, item=tree):
            assert refusal.startswith("item")
            assert not list(store._root.glob("1*"))
            return False
        store.wait()
        restored = store.restore(item=abstract(tree))[1]["item"]
        same(restored, tree)
        assert store.report.steps[0].verified
        assert str(verify(root)) == "step 1 is verified"
        if jax.tree.leaves(tree) and any(np.size(leaf) for leaf in jax.tree.leaves(tree)):
            same(load(store._root / "1", abstract(tree)), tree)
    return True


@pytest.mark.thorough
@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(trees)
@example({"a": {"b": np.ones(2)}, "a.b": np.zeros(3)})
@example([np.arange(3, dtype=">f4"), np.array(2, ">i8"), np.zeros((0, 2), ">c8")])
@example({"keys": jax.random.split(jax.random.key(3), 0)})
@example([jax.random.split(jax.random.key(3, impl="rbg"), (2, 0)), 5])
@example({"a": {}, "b": [(), [], {"c": None}], "": jnp.ones(2)})
def test_any_tree_that_save_accepts_is_restored_equal(assert_same, tree):
    check_round_trip(tree, assert_same)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(trees)
def test_a_thousand_trees_are_restored_equal(assert_same, tree):
    check_round_trip(tree, assert_same)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_the_list_returns(dtype, assert_same):
    tree = {"host": bits((2, 3), dtype, 1), "scalar": bits((1,), dtype, 2)[0]}
    if jax.dtypes.canonicalize_dtype(jnp.dtype(dtype)) == jnp.dtype(dtype):
        tree["device"] = jnp.asarray(bits((5,), dtype, 3))
        devices = jax.sharding.Mesh(jax.devices(), "x")
        place = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec("x"))
        tree["sharded"] = jax.device_put(bits((4,), dtype, 3), place)
    assert check_round_trip(tree, assert_same)


def every_dtype():
    """All dtypes of NumPy and ml_dtypes by name."""
    texts = [*"?bBhHiIlLqQefdgFDG", "M8[s]", "m8[ns]", "U3", "S3", "O", "V4", "f4,i2"]
    found = [np.dtype(text) for text in texts]
    classes = [x for x in vars(ml_dtypes).values() if isinstance(x, type)]
    found += [np.dtype(x) for x in classes if issubclass(x, np.generic)]
    return {str(dtype): dtype for dtype in found}


@pytest.mark.thorough
def test_every_dtype_is_stored_or_refused_at_the_call(tmp_path):
    unstored = set()
    for i, (name, dtype) in enumerate(every_dtype().items()):
        with Store(tmp_path / str(i)) as store:
            refusal = refused(store, item={"a": {"w": np.zeros(3, dtype)}})
        if refusal:
            assert refusal.startswith("item/a.w: a leaf must be")
            assert f"got dtype={dtype}; " in refusal
            unstored.add(name)
    assert unstored >= {"uint4", "float8_e4m3", "float128", "<U3", "object", "datetime64[s]"}
    assert every_dtype().keys() - unstored == storable.DTYPES


class Subclass(np.ndarray):
    pass


class Colour(enum.IntEnum):
    RED = 1


REFUSED = [
    (np.ma.masked_array([1.0], [True]), r"plain array, got type=MaskedArray; np.asarray\("),
    (np.zeros(2).view(Subclass), r"plain array, got type=Subclass; np.asarray\("),
    (jax.ShapeDtypeStruct((2,), jnp.float32), r"hold values, got type=ShapeDtypeStruct; save"),
    (Colour.RED, r"a number, got type=Colour; give other"),
    ("llama", r"got dtype=python str; give texts and other state through an object"),
    (1j, r"got type=complex; give other"),
    (np.zeros(2, "M8[s]"), r'got dtype=datetime64\[s\]; save leaf.view\("int64"\)'),
    (jnp.zeros(2, "uint4"), r'got dtype=uint4; save leaf.astype\("uint8"\)'),
    (np.zeros(2, ml_dtypes.float8_e4m3), r'got dtype=float8_e4m3; save leaf.view\("uint8"\)'),
    (np.zeros(2, np.longdouble), r'got dtype=float128; save leaf.astype\("float32"\)'),
    (2**63, r"an int must fit in 64 bits, got 9223.*; keep it"),
]


@pytest.mark.parametrize(("leaf", "message"), REFUSED, ids=[x[1][-40:] for x in REFUSED])
def test_a_leaf_that_cannot_return_is_named(tmp_path, leaf, message):
    with pytest.raises((TypeError, ValueError), match=rf"^item/a\.0: .*{message}"):
        Store(tmp_path / "run").save(1, item={"a": [leaf]})
    assert not (tmp_path / "run").exists()


def test_a_donated_leaf_is_named(tmp_path):
    x = jnp.ones(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(x).block_until_ready()
    with pytest.raises(
        ValueError, match=r"item/w: a leaf must still be there, got an array don.*;"
    ):
        Store(tmp_path).save(1, item={"w": x})


def test_a_traced_leaf_is_named(tmp_path):
    with pytest.raises(TypeError, match=r"item/w: .* concrete array, got type=.*Tracer; call save"):
        jax.jit(lambda x: Store(tmp_path).save(1, item={"w": x}))(jnp.ones(3))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": {"b": 1}, "a.b": 2}, r"joined by dots, .*got \['a/b', 'a.b'\] .*; rename"),
        ({"a": [1], "a.0": 2}, r"joined by dots, .*got \['a/0', 'a.0'\] .*; rename"),
        ({"\ud800": 1}, r"valid Unicode, got '\\ud800' with a lone surrogate; rename"),
        (
            collections.OrderedDict([(0, {"a": 1}), ("0", {"b": 2})]),
            r"different texts, got some that are equal .*; rename",
        ),
        (collections.OrderedDict([(0, 1), ("0", 2)]), r"different names, got \['0'\]"),
    ],
)
def test_names_that_orbax_would_confuse_are_refused(tmp_path, tree, message):
    with pytest.raises(ValueError, match=f"^item: .*{message}"):
        Store(tmp_path / "run").save(1, item=tree)
    assert not (tmp_path / "run").exists()


RESERVED = ["step", "metrics", "dovetail", "SHA256SUMS", "_CHECKPOINT_METADATA", "_METADATA"]


@pytest.mark.parametrize("name", [*RESERVED, "a/b", "", "a" * 256])
def test_names_of_items_that_are_taken_are_refused(name):
    with pytest.raises(ValueError, match=r"must be an identifier of .* got .*; give it another"):
        storable.check_names({name: 1})


def test_nothing_is_refused():
    with pytest.raises(ValueError, match=r"at least one item, got none; save\(step, model=state"):
        storable.check_names({})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=3), x, max_size=3),
    max_leaves=10,
)


@pytest.mark.thorough
@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4))
@example({"\ud800": "\udfff"})
@example({"big": 10**400, "tiny": 5e-324})
def test_any_state_that_save_accepts_is_restored_equal(stateful, state):
    with tempfile.TemporaryDirectory() as root, Store(root) as store:
        if refusal := refused(store, data=stateful(state)):
            assert "a dict that JSON returns unchanged" in refusal
            return
        data = stateful(None)
        store.restore(data=data)
        assert data.state == state


def test_a_live_state_that_changes_after_the_call_is_saved_as_it_was(tmp_path, stateful):
    state = {"row": 3, "order": [1, 2]}
    with Store(tmp_path) as store:
        for step in (1, 2):
            store.save(step, data=stateful(state))
            state["row"] += 1
            state["order"].append(step)
        data = stateful(None)
        for step, want in ((1, {"row": 3, "order": [1, 2]}), (2, {"row": 4, "order": [1, 2, 1]})):
            assert store.restore(step=step, data=data)[0] == step
            assert data.state == want


def deep(levels):
    state = {}
    for _ in range(levels):
        state = {"a": [state]}
    return state


@pytest.mark.parametrize(
    "state",
    [
        {1: 2},
        {"t": (1, 2)},
        {"x": float("nan")},
        {"x": float("inf")},
        {"b": b"bytes"},
        {"n": np.int64(3)},
        {"n": 10**5000},
        ["a"],
        None,
        deep(60),
        deep(5000),
    ],
    ids=lambda state: type(state).__name__,
)
def test_a_state_that_json_changes_is_refused(state):
    with pytest.raises(TypeError, match=r"must be a dict that JSON .*got data=.*; change its get"):
        storable.copied_state("data", state)


def test_a_wide_state_is_not_a_deep_one():
    state = {"rows": [[i] for i in range(1000)]}
    assert storable.copied_state("data", state) == state

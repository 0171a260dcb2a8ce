# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Which axis of a state's leaf is which of a parameter's, on one device and on eight."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from dovetail_optim.compressing.codec import Coded
from dovetail_optim.compressing.compress import compress
from dovetail_optim.compressing.master import split_master
from dovetail_optim.compressing.sharding import init, state_shardings

P = PartitionSpec
# Shapes alone need no devices: a mesh of any size can be planned for on one.
MESH = AbstractMesh((4, 8), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


@pytest.fixture(autouse=True)
def _optax_promotes():
    """`optax.adam` itself raises a float to an integer's power."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def shaped(*sizes, spec, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(MESH, spec))


class Kept(NamedTuple):
    kept: Any


def keeps(function):
    """A transformation whose state is a function of each parameter."""
    return optax.GradientTransformation(
        lambda params: Kept(jax.tree.map(function, params)), lambda g, s, p=None: (g, s)
    )


def spec_of(tx, leaf, **options):
    """The spec of the state that `tx` keeps of one parameter."""
    kept = state_shardings(tx, {"w": leaf}, **options).kept["w"]
    return tuple(kept.spec)


@pytest.mark.thorough("programs on eight devices")
@pytest.mark.capability("optimizer state sharded over eight devices")
def test_on_eight_devices(on_eight_devices):
    on_eight_devices("state_sharded.py")


@pytest.mark.parametrize(
    "function, spec, expected",
    [
        (lambda p: p, P("data", None, "model"), ("data", None, "model")),
        (lambda p: p[..., 0], P("data", None, "model"), ("data", None)),
        (lambda p: p.sum(0), P("data", None, "model"), (None, "model")),
        (lambda p: p.swapaxes(1, 2), P("data", None, "model"), ("data", "model", None)),
        (lambda p: p[:, :1], P("data", "model"), ("data", None, None)),
        # A Gram matrix: both axes are one of the parameter's, and a mesh axis splits one of them.
        (
            lambda p: jnp.zeros((64, p.shape[1], p.shape[1])),
            P("data", "model"),
            ("data", "model", None),
        ),
        (lambda p: jnp.zeros(p.shape[2]), P(None, None, ("data", "model")), (("data", "model"),)),
        (lambda p: jnp.zeros(()), P("data"), ()),
    ],
)
def test_each_axis_is_sharded_as_where_it_comes_from(function, spec, expected):
    assert spec_of(keeps(function), shaped(64, 32, 96, spec=spec)) == expected


def test_equal_axes_are_told_apart():
    """Of a stack of square matrices, by the sizes that `init` gives for others."""
    leaf = shaped(256, 256, 256, spec=P("data", "model", None))
    for axis, expected in ((0, ("model", None)), (1, ("data", None)), (2, ("data", "model"))):
        assert spec_of(keeps(lambda p, axis=axis: p.max(axis)), leaf) == expected


def test_the_zero_axis_splits_the_largest_that_is_whole():
    tx = keeps(lambda p: p)
    cases = [
        ((64, 96), P(None, "model"), ("data", "model")),
        ((64, 96), P(), (None, "data")),
        ((96, 64), P(), ("data", None)),
        ((64, 96), P("data", "model"), ("data", "model")),  # in use
        ((62, 96), P(None, "model"), (None, "model")),  # no axis that 4 divides
        ((5, 8, 7), P(), (None, "data", None)),
    ]
    for sizes, spec, expected in cases:
        got = spec_of(tx, shaped(*sizes, spec=spec), zero="data")
        assert got + (None,) * (len(sizes) - len(got)) == expected, (sizes, spec)


def test_codes_and_their_exponents_are_split_alike():
    for last, expected in ((4096, ("model", "data")), (96, ("model", None))):
        leaf = {"w": shaped(64, last, spec=P("model"))}
        state = state_shardings(compress(optax.adam(1e-3), block=32), leaf, zero="data")
        found = state.inner[0].mu["w"]
        assert isinstance(found, Coded)
        assert tuple(found.codes.spec) == tuple(found.exponents.spec) == expected
    # 96 is three blocks: cut in four, a piece would hold three quarters of one.


def test_remainders_keys_and_counters():
    leaf = {"w": shaped(64, 96, spec=P("data", "model"), dtype=jnp.bfloat16)}
    state = state_shardings(split_master(optax.add_noise(0.1, 0.5, 0)), leaf)
    assert tuple(state.remainder["w"].spec) == ("data", "model")
    assert {tuple(x.spec) for x in jax.tree.leaves(state.inner)} == {()}


def test_nnx_states_and_bare_arrays():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    model = nnx.state(nnx.Linear(8, 6, rngs=nnx.Rngs(0)), nnx.Param)
    params = jax.device_put(model, NamedSharding(mesh, P("data")))
    mu = state_shardings(optax.adam(1e-3), params)[0].mu
    assert {x.spec[0] for x in jax.tree.leaves(mu)} == {"data"}
    bare = shaped(64, 96, spec=P("data", "model"))
    assert tuple(state_shardings(optax.adam(1e-3), bare)[0].nu.spec) == ("data", "model")
    state = init(optax.adam(1e-3), params)
    assert all(not np.asarray(x).any() for x in jax.tree.leaves(state))


def test_a_name_that_ends_as_another():
    """`a/w` and `w`: state of the longer is not taken for that of the shorter."""
    tree = {"w": shaped(64, 32, spec=P("data")), "a": {"w": shaped(64, 32, spec=P(None, "model"))}}
    mu = state_shardings(optax.adam(1e-3), tree)[0].mu
    assert tuple(mu["w"].spec) == ("data", None)
    assert tuple(mu["a"]["w"].spec) == (None, "model")


def test_what_is_refused():
    leaf = {"w": shaped(64, 96, spec=P("data"))}
    with pytest.raises(ValueError, match=r"axis of .* mesh; got zero='x'; write one of \['data',"):
        state_shardings(optax.adam(1e-3), leaf, zero="x")
    with pytest.raises(ValueError, match=r"NamedSharding; got 'w' with sharding=.*write jax\.dev"):
        state_shardings(optax.adam(1e-3), {"w": jnp.ones(3)})
    other = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))
    two = {**leaf, "b": jax.ShapeDtypeStruct((4,), jnp.float32, sharding=NamedSharding(other, P()))}
    with pytest.raises(ValueError, match=r"on one mesh; got 2 meshes.*write\s+jax\.device_put"):
        state_shardings(optax.adam(1e-3), two)
    odd = keeps(lambda p: jnp.zeros((133, 135)))
    with pytest.raises(
        ValueError, match=r"axes of a parameter; got 'kept.w' of shape \(133, 135\)"
    ):
        state_shardings(odd, leaf)
    small = state_shardings(keeps(lambda p: jnp.zeros((13, 15))), leaf)
    assert tuple(small.kept["w"].spec) == ()

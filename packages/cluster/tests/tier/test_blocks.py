# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Arrays as blocks and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_cluster.tier.blocks import Block, Leaf, assembled, divide, host_blocks, leaves


class Device:
    def __init__(self, rank):
        self.process_index = rank


class Sharding:
    """A stand-in for the sharding of an array on several ranks: rows by rank, or all on each."""

    def __init__(self, ranks, *, rows):
        self.ranks, self.rows = ranks, rows

    def devices_indices_map(self, shape):
        part = shape[0] // len(self.ranks)
        rest = (slice(None),) * (len(shape) - 1)
        return {
            Device(r): (slice(i * part, (i + 1) * part) if self.rows else slice(None), *rest)
            for i, r in enumerate(self.ranks)
        }


class Global:
    """An array of several ranks, as far as `divide` looks at one."""

    def __init__(self, shape, dtype, sharding):
        self.shape, self.dtype, self.sharding = shape, np.dtype(dtype), sharding


@pytest.fixture
def arrays(monkeypatch):
    monkeypatch.setattr(jax, "Array", Global)


def test_replicas_are_shared_out_evenly(arrays):
    whole = Sharding([0, 1, 2], rows=False)
    given_leaves = [Leaf(str(i), Global((4,), np.float32, whole)) for i in range(6)]
    assert [block.writer for block in divide(given_leaves)] == [0, 1, 2, 0, 1, 2]


def test_each_element_has_one_writer_that_holds_it(arrays):
    rows = Global((6, 2), np.float32, Sharding([2, 0, 1], rows=True))
    value = np.zeros((3, 3))
    blocks = divide([Leaf("r", rows), Leaf("v", value), Leaf("e", np.zeros((0, 2)))])
    assert blocks == [
        Block("r", (0, 0), (2, 2), 16, 2),
        Block("r", (2, 0), (2, 2), 16, 0),
        Block("r", (4, 0), (2, 2), 16, 1),
        Block("v", (0, 0), (3, 3), 72, 0),
    ]


def test_leaves_have_names_and_keys_become_data():
    key = jax.random.key(3)
    tree = {"w": jnp.ones(2), "inner": [key, 4], "n": np.float64(0.5)}
    found = {leaf.name: leaf.value for leaf in leaves({"t": tree})}
    assert [*found] == ["t/inner/0", "t/inner/1", "t/n", "t/w"]
    assert np.array_equal(found["t/inner/0"], jax.random.key_data(key))
    assert found["t/inner/1"].shape == ()
    with pytest.raises(TypeError, match=r"array or a number, got str at t/x; save it in an object"):
        leaves({"t": {"x": "text"}})


def test_an_array_of_one_rank_alone_is_refused(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=r"be on all 2 ranks, got t/x on the ranks \[0\]; write"):
        leaves({"t": {"x": jnp.ones(2)}})


def test_blocks_on_the_host_have_the_values():
    mesh = jax.make_mesh((len(jax.devices()),), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    value = np.random.default_rng(0).normal(size=(4 * len(jax.devices()), 3)).astype(np.float32)
    given_leaves = [Leaf("t/w", jax.device_put(value, sharding)), Leaf("t/n", np.arange(3))]
    blocks = divide(given_leaves)
    parts = [(b, x) for b, x in host_blocks(given_leaves, blocks, 0) if b.name == "t/w"]
    whole = assembled(
        (slice(None), slice(None)), value.shape, value.dtype, [(b.begin, x) for b, x in parts]
    )
    assert len(parts) == len(jax.devices())
    assert np.array_equal(whole, value)
    assert [*host_blocks(given_leaves, blocks, 1)] == []


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 9), st.data())
def test_any_part_is_assembled_of_any_blocks(rows, columns, size, data):
    whole = np.arange(rows * columns).reshape(rows, columns)
    parts = [((low, 0), whole[low : low + size]) for low in range(0, rows, size)]
    low, high = sorted(data.draw(st.tuples(st.integers(0, rows), st.integers(0, rows))))
    index = (slice(low, high), slice(None))
    assert np.array_equal(assembled(index, whole.shape, whole.dtype, parts), whole[index])

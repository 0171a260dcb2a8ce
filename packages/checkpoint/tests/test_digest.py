# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dovetail_checkpoint import digest
from dovetail_checkpoint.proof.digest import _HOST_BYTES, _device_sums, begin_digests, hex_digests
from dovetail_checkpoint.proof.sums import host_sums, total

M = 0xFFFFFFFF


def oracle(words: list[int]) -> tuple[int, int]:
    """The module's definition in Python's integers."""
    first = second = 0
    for position, word in enumerate(words):
        key = position * 0x9E3779B9 & M
        x = word ^ key ^ (key >> 15)
        x = (x ^ x >> 16) * 0x85EBCA6B & M
        x = (x ^ x >> 13) * 0xC2B2AE35 & M
        x ^= x >> 16
        y = (x ^ (x << 7 & M)) * 0x27D4EB2F & M
        first, second = first + x, second + (y ^ y >> 15)
    return first & M, second & M


def _host_sums(array: np.ndarray) -> np.ndarray:
    return total(host_sums(array))


def words_of(array: np.ndarray) -> list[int]:
    """The 32-bit words of the elements, from their bytes."""
    if array.dtype == jnp.int4:
        array = array.astype(np.int8)
    masks = {jnp.dtype("int2"): 3, jnp.dtype("float4_e2m1fn"): 15}
    if array.dtype in masks:  # of each byte only the low bits are defined
        array = np.array([x & masks[array.dtype] for x in array.tobytes()], np.uint8)
    size = array.dtype.itemsize
    data = array.tobytes()
    elements = [data[i : i + size] for i in range(0, len(data), size)]
    padded = b"".join(element.ljust(-(-size // 4) * 4, b"\0") for element in elements)
    return list(struct.unpack(f"<{len(padded) // 4}I", padded))


NARROW = ["float32", "bfloat16", "float16", "float8_e4m3fn", "int8", "uint8", "int16", "int32"]
NARROW += ["uint32", "int4", "bool", "complex64", "int2", "float4_e2m1fn", "float8_e8m0fnu"]
WIDE = ["float64", "int64", "uint64", "complex128"]


def random_array(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    values = np.random.default_rng(3).normal(size=shape) * 5
    real = np.asarray(values, np.complex64 if dtype.startswith("complex") else np.float64)
    return np.asarray(real, jnp.dtype(dtype))


@pytest.mark.parametrize("shape", [(3, 5, 2), (7,), (), (0, 4), (1, 1)])
@pytest.mark.parametrize("dtype", NARROW + WIDE)
def test_numpy_digest_is_the_definition(dtype, shape):
    array = random_array(dtype, shape)
    assert tuple(_host_sums(array)) == oracle(words_of(array))


@pytest.mark.parametrize("shape", [(3, 5, 2), (), (0, 4)])
@pytest.mark.parametrize("dtype", NARROW)
def test_xla_digest_is_the_definition(dtype, shape):
    array = random_array(dtype, shape)
    assert tuple(np.asarray(_device_sums(jnp.asarray(array)))) == oracle(words_of(array))


@pytest.mark.parametrize("dtype", WIDE)
def test_xla_digest_of_wide_dtypes_is_the_definition(dtype):
    array = random_array(dtype, (3, 5, 2))
    with jax.enable_x64(True):
        found = np.asarray(_device_sums(jnp.asarray(array)))
    assert tuple(found) == oracle(words_of(array))


def test_first_word_is_murmur3s_finaliser():
    # fmix32(1) = 0x514E28B7, published with MurmurHash3; position 0 has the key 0.
    assert hex_digests([np.uint32(1)])[0].startswith("514e28b7")


def test_both_ways_agree_beyond_a_block():
    array = np.random.default_rng(0).normal(size=(3, 8191, 3)).astype(np.float32)
    assert tuple(_host_sums(array)) == tuple(np.asarray(_device_sums(jnp.asarray(array))))


def test_layout_in_memory_does_not_matter():
    array = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    assert tuple(_host_sums(np.asfortranarray(array))) == oracle(words_of(array))


def test_numbers_and_keys():
    key = jax.random.key(5)
    found = digest({"i": -3, "f": 0.1, "b": True, "k": key})
    want = {
        "i": np.int64(-3),
        "f": np.float64(0.1),
        "b": np.bool_(True),
        "k": np.asarray(jax.random.key_data(key)),
    }
    assert {name: tuple(map(int, value)) for name, value in found.items()} == {
        name: oracle(words_of(np.asarray(value))) for name, value in want.items()
    }


@pytest.mark.thorough
def test_inside_jit_is_the_same():
    tree = {"a": jnp.arange(15.0).reshape(3, 5), "b": [jnp.arange(4)]}
    traced, plain = jax.jit(digest)(tree), digest(tree)
    assert traced.keys() == plain.keys() == {"a", "b.0"}
    assert all(np.array_equal(traced[name], plain[name]) for name in plain)


@pytest.mark.capability("digests that find flipped bits")
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_flipped_bits_of_one_element_change_both_sums(data):
    size = data.draw(st.integers(1, 40))
    words = np.random.default_rng(size).integers(0, 2**32, size, dtype=np.uint32)
    damaged = words.copy()
    damaged[data.draw(st.integers(0, size - 1))] ^= np.uint32(data.draw(st.integers(1, M)))
    assert np.all(_host_sums(words) != _host_sums(damaged))


def damages(rng: np.random.Generator, array: np.ndarray):
    """Damage that weaker sums miss, by name."""
    flat = array.reshape(-1)
    i, j = rng.choice(flat.size, 2, replace=False)
    signs = flat.copy()
    signs[[i, j]] = -signs[[i, j]]
    yield "two signs", signs
    swapped = flat.copy()
    swapped[[i, j]] = swapped[[j, i]]
    yield "two elements swapped", swapped
    yield "rows swapped", array[::-1].reshape(-1)
    yield "shifted", np.roll(flat, 1)
    zeroed = flat.copy()
    zeroed[: flat.size // 2] = 0
    yield "half zeroed", zeroed
    stuck = (flat.view(np.uint32) | np.uint32(1 << int(rng.integers(32)))).view(np.float32)
    if not np.array_equal(stuck.view(np.uint32), flat.view(np.uint32)):
        yield "a stuck bit", stuck


def test_damage_of_many_words_is_found():
    rng = np.random.default_rng(11)
    missed, tried = [], 0
    for _ in range(50):
        array = rng.normal(size=(6, 11)).astype(np.float32)
        for name, damaged in damages(rng, array):
            tried += 1
            missed += [name] if np.array_equal(_host_sums(damaged), _host_sums(array)) else []
    assert tried > 290
    assert missed == []


def test_a_bit_stuck_in_zeros_is_found():
    # XOR by a constant permutes the keys 0..n of a plain counter; these keys it must not.
    zeros = np.zeros(1 << 16, np.uint32)
    want = tuple(_host_sums(zeros))
    assert all(tuple(_host_sums(zeros ^ np.uint32(1 << bit))) != want for bit in range(32))


def test_what_lies_on_the_host_compiles_nothing_for_its_shape():
    before = _device_sums._cache_size()
    hex_digests([jax.device_put(np.full((3, i + 1), 1.5, np.float32)) for i in range(300)])
    hex_digests([jnp.zeros((_HOST_BYTES // 4096 + 1, 1024))])
    assert _device_sums._cache_size() == before


@pytest.mark.parametrize("rows", [_HOST_BYTES // 8192 // 2, _HOST_BYTES // 8192])
def test_over_several_devices_many_bytes_of_a_shape_compile_once(rows):
    # Two leaves that together reach _HOST_BYTES, or only half of it.
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    values = np.random.default_rng(0).normal(size=(rows, 1024)).astype(np.float32)
    leaf = jax.device_put(values, NamedSharding(mesh, PartitionSpec("x")))
    before = _device_sums._cache_size()
    assert hex_digests([leaf, leaf + 1]) == hex_digests([values, values + 1])
    assert _device_sums._cache_size() - before == (2 * values.nbytes >= _HOST_BYTES)


@pytest.mark.thorough
def test_a_leaf_may_be_donated_or_changed_before_its_digest_is_known():
    # Also leaves so large that reading them takes longer than the calls that follow.
    step = jax.jit(jnp.negative, donate_argnums=0)
    rng = np.random.default_rng(1)
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    host = [rng.normal(size=(size, 1024)).astype(np.float32) for size in (6, 4_000, 12_000)]
    leaves = [jnp.array(x) for x in host] + [jax.device_put(x, sharding) for x in host]
    want = hex_digests([*host, *host])
    end = begin_digests(leaves)
    after = jax.block_until_ready([step(x) for x in leaves])
    assert end() == want
    assert [np.array_equal(x, -y) for x, y in zip(after, host * 2, strict=True)] == [True] * 6
    end = begin_digests(host)
    for x in host:
        x[:] = 0
    assert end() == want[:3]


def test_a_leaf_of_another_type_is_refused():
    with pytest.raises(TypeError, match=r"must be an array.*got type=str; leave it out"):
        digest({"name": "llama"})


@pytest.mark.capability("digests that find flipped bits", on="cuda")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int4", "bool", "complex64"])
def test_the_sum_lowers_for_cuda(dtype):
    leaf = jax.ShapeDtypeStruct((64, 33), jnp.dtype(dtype))
    exported = jax.export.export(jax.jit(digest), platforms=["cuda"])({"w": leaf})
    assert exported.platforms == ("cuda",)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writing into pages: the rows of the slots, in place, and nothing else."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from dovetail_kernels.paged.pages import QuantizedPages
from dovetail_kernels.paged.write import _scatter, _scatter_joined, _select, paged_write
from dovetail_kernels.testing.paged import check_paged_write


def arrays(*, tokens=4, pages=64, dtype=jnp.float32):
    k, v = jax.random.normal(jax.random.key(0), (2, tokens, 4, 16), dtype)
    return jnp.zeros((pages, 2, 8, 4, 16), dtype), k, v


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_conformance(dtype):
    check_paged_write(paged_write, dtype=dtype)


@pytest.mark.parametrize("way", [_scatter, _scatter_joined, _select])
def test_all_ways_of_writing(way):
    check_paged_write(lambda pages, k, v, *, slots: way(pages, (k, v), slots), dtype="bfloat16")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_donated_pages_are_updated_in_place(dtype):
    pages, k, v = arrays(dtype=jnp.dtype(dtype))
    slots = jnp.array([5, -1, 500, 17], jnp.int32)
    write = jax.jit(paged_write, donate_argnums=0).lower(pages, k, v, slots=slots).compile()
    memory = write.memory_analysis()
    assert memory.alias_size_in_bytes == pages.nbytes
    # Not a copy of all pages, and not one in float32; 8 KiB are for the rows and their places.
    assert memory.temp_size_in_bytes <= 8192
    before = pages.unsafe_buffer_pointer()
    after = write(pages, k, v, slots=slots)
    assert after.unsafe_buffer_pointer() == before
    assert pages.is_deleted()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_numpy_arrays_are_written_to_new_pages(dtype):
    """Codes too. The result is that of JAX's arrays, and the caller's pages keep their values."""
    pages, k, v = arrays(pages=3, dtype=jnp.float32 if dtype == "int8" else jnp.dtype(dtype))
    if dtype == "int8":
        pages = QuantizedPages.zeros(pages.shape, "int8")
    ours = jax.tree.map(np.asarray, (pages, k, v))
    before = jax.tree.map(np.copy, ours)
    slots = np.array([5, -1, 0, 17])
    written = paged_write(*ours, slots=slots)
    expected = paged_write(pages, k, v, slots=jnp.asarray(slots))
    jax.tree.map(np.testing.assert_array_equal, (written, ours), (expected, before))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(written))


@pytest.mark.parametrize("codes", [False, True])
def test_a_gpu_writes_keys_and_values_by_one_scatter(codes):
    pages, k, v = arrays()
    pages = QuantizedPages.zeros(pages.shape, "int8") if codes else pages
    slots = jnp.array([5, -1, 500, 17], jnp.int32)
    device = AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="cuda")

    def scatters():
        jaxpr = jax.make_jaxpr(lambda *a: paged_write(*a, slots=slots))(pages, k, v)
        return str(jaxpr).count(" scatter[")

    assert scatters() == 2 * (1 + codes)  # of codes, and of their scales
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        assert scatters() == 1 + codes


@pytest.mark.thorough
def test_no_tokens():
    pages, k, v = arrays(tokens=0)
    none = jnp.zeros(0, jnp.int32)
    np.testing.assert_array_equal(paged_write(pages + 1, k, v, slots=none), pages + 1)
    np.testing.assert_array_equal(_select(pages + 1, (k, v), none), pages + 1)


@pytest.mark.thorough
def test_gradient_and_vmap():
    pages, k, v = arrays(pages=3)
    slots = np.array([[5, -1, 0, 17], [1, 2, 3, 23]], np.int32)
    weight = jax.random.normal(jax.random.key(1), (2, *pages.shape))

    @jax.jit
    @jax.grad
    def gradient(three):
        written = jax.vmap(lambda slots: paged_write(*three, slots=slots))(jnp.asarray(slots))
        return jnp.vdot(written, weight)

    dpages, dk, dv = gradient((pages, k, v))
    want = np.asarray(weight).swapaxes(2, 3).reshape(2, 24, 2, 4, 16)
    kept = np.ones((2, 24, 1, 1, 1))
    want_k, want_v = np.zeros(k.shape), np.zeros(v.shape)
    for batch, token in np.argwhere(slots >= 0):
        slot = slots[batch, token]
        want_k[token] += want[batch, slot, 0]
        want_v[token] += want[batch, slot, 1]
        kept[batch, slot] = 0
    np.testing.assert_allclose(dk, want_k, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(dv, want_v, rtol=1e-6, atol=1e-6)
    want_pages = (want * kept).sum(0).reshape(3, 8, 2, 4, 16).swapaxes(1, 2)
    np.testing.assert_allclose(dpages, want_pages, rtol=1e-6, atol=1e-6)


def test_a_traced_slot_beyond_the_last_writes_nothing():
    pages, k, v = arrays(pages=3)
    slots = jnp.array([24, 2**31 - 1, -(2**31), 99], jnp.int32)
    found = jax.jit(paged_write)(pages + 1, k, v, slots=slots)
    np.testing.assert_array_equal(found, pages + 1)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"pages": jnp.zeros((3, 8, 4, 16))}, r"second axis keys and values .* pages.shape=\(3, "),
        ({"pages": jnp.zeros((3, 3, 8, 4, 16))}, r"Use jnp.stack\(\[k, v\], axis=1\)"),
        (
            {"pages": jnp.zeros((3, 8, 2, 4, 16))},
            r"got pages.*2, 4, 16\). Use pages.swapaxes\(1, 2",
        ),
        ({"pages": jnp.zeros((3, 2, 8, 4, 16), jnp.int8)}, r"=int8. Convert .* or use QuantizedP"),
        (
            {"pages": jax.ShapeDtypeStruct((2**28, 2, 8, 4, 16), jnp.float32)},
            r"fewer than 2\*\*31 keys, .* Split the cache",
        ),
        (
            {"k": jnp.zeros((4, 2, 16))},
            r"must be \[slots, .* got k.shape=\(4, 2, 16\).*Flat",
        ),
        ({"v": jnp.zeros((3, 4, 16))}, r"v.shape=\(3, 4, 16\)"),
        ({"slots": jnp.zeros((4, 1), jnp.int32)}, r"slots.shape=\(4, 1\)"),
        ({"v": jnp.zeros((4, 4, 16), jnp.bfloat16)}, r"v.dtype=bfloat16 and .* Use k.astype"),
        (
            {"slots": np.ones(4)},
            r"slots must be integers, got slots.dtype=float64. Use",
        ),
        (
            {"slots": np.arange(4) + 2**32},
            r"below pages times page size, 24, got slots\[3\]=42",
        ),
        (
            {"slots": np.array([0, 1, 24, 2], np.int32)},
            r"below pages times page size, 24, got slots\[2\]=24. Use page id \* page size",
        ),
        (
            {"slots": jnp.array([7, -1, -1, 7], jnp.int32)},
            r"differ from each other, got slot 7 2 times. Give each token its own",
        ),
    ],
)
def test_what_is_refused(monkeypatch, change, message):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    pages, k, v = arrays(pages=3)
    given = {"pages": pages, "k": k, "v": v, "slots": jnp.arange(4, dtype=jnp.int32), **change}
    with pytest.raises(ValueError, match=message):
        paged_write(**given)


@pytest.mark.thorough
def test_slots_beyond_int32_write_nothing():
    pages, k, v = arrays(pages=3)
    with jax.enable_x64(True):
        slots = jnp.array([2**32, 2**40 + 1, -(2**32) + 2, 5], jnp.int64)
        found = jax.jit(paged_write)(pages + 1, k, v, slots=slots)
    want = np.ones(pages.shape, np.float32)
    want[0, :, 5] = np.stack([k[3], v[3]])
    np.testing.assert_array_equal(found, want)

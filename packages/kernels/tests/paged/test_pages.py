# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Pages of codes: their bound of error, written and read back, and attention over them."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from dovetail_kernels import QuantizedPages, paged_attention, paged_write
from dovetail_kernels.paged.pages import quantized

DTYPES = ("int8", "float8_e4m3fn")


def read(pages):
    return np.asarray(pages.codes, np.float64) * np.asarray(pages.scales, np.float64)[..., None]


def bound(x, dtype):
    """The documented bound of the error of each element, and rounding of the float32 scale."""
    largest = np.abs(x).max(-1, keepdims=True)
    if dtype == "int8":
        return largest * (1 / 254 + 1e-6)
    return np.maximum(np.abs(x) / 16, largest / 448 / 1024) * (1 + 1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("of", ["float32", "bfloat16", "float16"])
def test_codes_are_within_their_bound(dtype, of):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 3, 7)) * 10.0 ** rng.uniform(-3, 3, (300, 3, 1))
    x[5], x[6, 0] = 0, [1e-3, 1, 0, -1, 1e-5, 0.5, -1e-7]
    x = np.asarray(jnp.asarray(x, of), np.float64)
    codes, scales = quantized(jnp.asarray(x, of), jnp.dtype(dtype))
    assert codes.dtype == dtype
    assert scales.dtype == jnp.float32
    found = np.asarray(codes, np.float64) * np.asarray(scales, np.float64)[..., None]
    assert (np.abs(found - x) <= bound(x, dtype)).all()
    assert not found[5].any()
    largest = np.abs(np.asarray(codes, np.float64)).max(-1)
    assert (largest[scales > 0] == {"int8": 127, "float8_e4m3fn": 448}[dtype]).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("vectors", [2, 5000])  # many are reduced in parallel
def test_what_is_not_finite_is_not_lost(dtype, value, vectors):
    x = jnp.ones((vectors, 5)).at[0, 3].set(value)
    codes, scales = quantized(x, jnp.dtype(dtype))
    found = codes.astype(jnp.float32) * scales[:, None]
    assert np.isnan(found[0]).all()
    np.testing.assert_array_equal(found[1:], np.ones((vectors - 1, 5)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("small", [1e-38, 1e-42, 3e38])
def test_extreme_vectors_do_not_overflow(dtype, small):
    codes, scales = quantized(jnp.full((1, 4), small, jnp.float32), jnp.dtype(dtype))
    found = codes.astype(jnp.float32) * scales[:, None]
    assert np.isfinite(found).all()
    assert (np.abs(found) <= np.float32(small) * 1.01).all()


@pytest.mark.thorough
@pytest.mark.capability("attention over a paged cache of int8 and float8 codes")
@pytest.mark.parametrize("dtype", DTYPES)
def test_written_and_attended(dtype):
    """Codes are written; attention over them is that over what they stand for, and near k and v."""
    rng = np.random.default_rng(1)
    k, v = jnp.asarray(rng.standard_normal((2, 40, 2, 16)), jnp.float32)
    q = jnp.asarray(rng.standard_normal((3, 4, 16)), jnp.float32)
    pages = QuantizedPages.zeros((12, 2, 4, 2, 16), dtype)
    slots = rng.permutation(48)[:40]
    pages = jax.jit(paged_write, donate_argnums=0)(pages, k, v, slots=slots)
    by_slot = read(pages).swapaxes(1, 2).reshape(48, 2, 2, 16)
    assert (np.abs(by_slot[slots, 0] - k) <= bound(k, dtype)).all()
    assert (np.abs(by_slot[slots, 1] - v) <= bound(v, dtype)).all()
    unused = np.setdiff1d(np.arange(48), slots)
    assert not by_slot[unused].any()

    # One request in order of pages: its keys are those of the slots, in order.
    numbers = {"page_table": np.arange(12)[None], "kv_lengths": [48], "q_starts": [0, 3]}
    numbers = {name: np.asarray(value) for name, value in numbers.items()}
    floats = jnp.asarray(read(pages), jnp.float32)
    want = paged_attention(q, floats, **numbers, impl="reference")
    for impl in ("gather", "reference"):
        out = paged_attention(q, pages, **numbers, impl=impl)
        # A mean of values below 4, with a rounding for each of H + S terms of its sums.
        np.testing.assert_allclose(out, want, rtol=0, atol=4 * 64 * 2.0**-23)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", DTYPES)
def test_donated_codes_are_updated_in_place(dtype):
    pages = QuantizedPages.zeros((64, 2, 8, 4, 16), dtype)
    k, v = jax.random.normal(jax.random.key(0), (2, 4, 4, 16))
    slots = jnp.array([5, -1, 500, 17])
    write = jax.jit(paged_write, donate_argnums=0).lower(pages, k, v, slots=slots).compile()
    memory = write.memory_analysis()
    assert memory.alias_size_in_bytes == pages.codes.nbytes + pages.scales.nbytes
    assert memory.temp_size_in_bytes <= 16384  # rows and their codes, not the cache of 64 KiB


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", DTYPES)
def test_no_float_copy_of_the_codes(dtype):
    """Neither all codes (4 MiB) nor their floats: blocks alone."""
    struct = jax.ShapeDtypeStruct
    shape = (4096, 2, 16, 2, 16)
    pages = QuantizedPages(codes=struct(shape, dtype), scales=struct(shape[:-1], jnp.float32))
    numbers = {"page_table": (4, 1024), "kv_lengths": (4,), "q_starts": (5,)}
    numbers = {name: struct(size, jnp.int32) for name, size in numbers.items()}
    step = jax.jit(lambda q, pages, numbers: paged_attention(q, pages, **numbers))
    compiled = step.lower(struct((4, 8, 16), jnp.float32), pages, numbers).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2**20


@pytest.mark.thorough
def test_latent_pages_are_written():
    pages, k = jnp.zeros((3, 1, 2, 1, 5)), jax.random.normal(jax.random.key(0), (2, 1, 5))
    written = paged_write(pages, k, None, slots=np.array([4, -1]))
    np.testing.assert_array_equal(written[2, 0, 0], k[0])
    assert not written[:2].any()
    empty = QuantizedPages.zeros((3, 1, 2, 1, 5))
    codes = paged_write(empty, k, None, slots=np.array([4, 1], np.uint8))
    assert (np.abs(read(codes)[[2, 0], 0, [0, 1]] - k) <= bound(k, "int8")).all()


@pytest.mark.parametrize(
    "v, entries, message",
    [
        (None, 2, r"v must be None .* only for them, got v=None and .* Pass the values"),
        ((4, 2, 8), 1, r"got v=\[4, 2, 8\] and pages.shape=\(3, 1, 2, 2, 8\). Use v=None"),
    ],
)
def test_values_belong_to_pages_of_two_entries(v, entries, message):
    pages, k = jnp.zeros((3, entries, 2, 2, 8)), jnp.zeros((4, 2, 8))
    v = None if v is None else jnp.zeros(v)
    with pytest.raises(ValueError, match=message):
        paged_write(pages, k, v, slots=jnp.arange(4))


def test_only_floats_are_rounded(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    pages, k = QuantizedPages.zeros((3, 2, 2, 2, 8)), jnp.zeros((4, 2, 8), jnp.int32)
    with pytest.raises(ValueError, match=r"to be rounded to codes, got k.dtype=int32, .* Use k.as"):
        paged_write(pages, k, k, slots=jnp.arange(4))
    with pytest.raises(ValueError, match=r"codes of int8, float8_e4m3fn, got codes.dtype=uint8"):
        QuantizedPages.zeros((3, 2, 2, 2, 8), "uint8")

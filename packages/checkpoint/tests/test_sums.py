# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_checkpoint.proof import sums
from dovetail_checkpoint.proof.sums import _BLOCK_BYTES, _xla_sums, host_sums, total, word_sums


def oracle(words: np.ndarray, start: int) -> tuple[int, int]:
    """The definition in 64-bit integers, all words at once."""
    mask, position = np.uint64(0xFFFFFFFF), np.arange(words.size, dtype=np.uint64)
    key = (position + np.uint64(start)) * np.uint64(0x9E3779B9) & mask
    x = words.astype(np.uint64) ^ key ^ (key >> np.uint64(15))
    x = (x ^ x >> np.uint64(16)) * np.uint64(0x85EBCA6B) & mask
    x = (x ^ x >> np.uint64(13)) * np.uint64(0xC2B2AE35) & mask
    x ^= x >> np.uint64(16)
    y = (x ^ (x << np.uint64(7) & mask)) * np.uint64(0x27D4EB2F) & mask
    y ^= y >> np.uint64(15)
    return tuple(int(np.add.reduce(z) & mask) for z in (x, y))


def random_words(dtype: str, n_bytes: int) -> np.ndarray:
    data = np.random.default_rng(n_bytes).integers(0, 256, n_bytes, dtype=np.uint8)
    return data.view(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
@pytest.mark.parametrize(
    "n_bytes", [0, 12, _BLOCK_BYTES[-1] - 4, _BLOCK_BYTES[-1], 2 * sum(_BLOCK_BYTES) + 20]
)
def test_blocks_of_all_sizes_add_up_to_the_definition(dtype, n_bytes):
    words = random_words(dtype, n_bytes)
    assert tuple(map(int, total(word_sums(words, 7)))) == oracle(words, 7)


@pytest.mark.parametrize("start", [2**32 - 1000, 2**32 + 3, 5 * 2**32 - 1])
def test_positions_repeat_after_two_to_the_32(start):
    words = random_words("uint32", _BLOCK_BYTES[-1] + 40_000)
    assert tuple(map(int, total(word_sums(words, start)))) == oracle(words, start)


def test_where_the_words_lie_does_not_matter():
    for n_bytes in (2 * _BLOCK_BYTES[-1] + 3, _BLOCK_BYTES[0] + 300_000):
        words = random_words("uint8", n_bytes)
        want = oracle(words, 9)
        for shift in (1, 63):
            shifted = np.empty(words.size + shift, np.uint8)[shift:]
            shifted[:] = words
            assert tuple(total(word_sums(shifted, 9))) == want


@pytest.mark.thorough
def test_one_program_for_each_block_size_and_width():
    before = _xla_sums._cache_size()
    for n in range(40):
        for dtype in (np.float32, np.int32, jnp.bfloat16, np.int8):
            total(host_sums(np.full((97 + n, 20_011), 2, dtype)[:: 1 + n % 2]))
    assert _xla_sums._cache_size() - before <= 3 * len(_BLOCK_BYTES)


def test_without_a_cpu_backend_numpy_sums_and_says_so(monkeypatch, caplog):
    words = random_words("uint32", _BLOCK_BYTES[-1] + 8)
    want = total(word_sums(words, 3))

    def no_such_backend(backend):
        raise RuntimeError(f"Unknown backend {backend}")

    before = _xla_sums._cache_size()
    sums._cpu.cache_clear()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "dovetail_checkpoint"):
        patch.setattr(jax, "local_devices", no_such_backend)
        found = [total(word_sums(words, 3)) for _ in range(2)]
    sums._cpu.cache_clear()
    assert [tuple(x) for x in found] == [tuple(want)] * 2
    assert _xla_sums._cache_size() == before
    assert caplog.text.count("no CPU backend") == 1
    assert "add cpu to jax_platforms" in caplog.text

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Reference operations against loops in NumPy float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_infer import Operations, reference

PAGE, COLUMNS, HEADS, KV_HEADS, WIDTH = 3, 4, 4, 2, 5
COUNTS, LENGTHS = (3, 1, 0, 5), (7, 12, 2, 5)
ROWS = 11  # two of padding
TABLE = np.array([[6, 2, 9, 0], [1, 5, 3, 8], [4, 0, 0, 0], [7, 10, 0, 0]], np.int32)


def _inputs(latent):
    rng = np.random.default_rng(0)
    q = rng.standard_normal((ROWS, HEADS, WIDTH)).astype(np.float32)
    pages = rng.standard_normal((12, 1 if latent else 2, PAGE, KV_HEADS, WIDTH))
    pages[11] = np.nan  # nobody's
    return q, pages.astype(np.float32)


def _oracle(q, pages, *, window=None, soft_cap=None, sinks=None, scale=None, value_width=None):
    width = WIDTH if value_width is None else value_width
    out = np.zeros((ROWS, HEADS, width))
    row = 0
    for request, count in enumerate(COUNTS):
        kv = pages[TABLE[request]].astype(np.float64).swapaxes(0, 1)
        kv = kv.reshape(-1, PAGE * COLUMNS, KV_HEADS, WIDTH)
        for i in range(count):
            position = LENGTHS[request] - count + i
            first = 0 if window is None else max(0, position + 1 - window)
            for n in range(HEADS):
                k = kv[0, first : position + 1, n // 2]
                logits = k @ q[row, n] * (WIDTH**-0.5 if scale is None else scale)
                if soft_cap is not None:
                    logits = soft_cap * np.tanh(logits / soft_cap)
                weights = np.exp(logits)
                total = weights.sum() + (0 if sinks is None else np.exp(sinks[n]))
                out[row, n] = weights @ kv[-1, first : position + 1, n // 2, :width] / total
            row += 1
    return out


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": 4},
        {"soft_cap": 0.7, "scale": 1.3},
        {"sinks": np.array([0.5, -2.0, 1.5, 0.1], np.float32), "window": 2},
        {"value_width": 3},
    ],
)
def test_attention_reads_the_pages_of_each_request(options):
    q, pages = _inputs("value_width" in options)
    rows = {
        "page_table": jnp.asarray(TABLE),
        "kv_lengths": jnp.array(LENGTHS, jnp.int32),
        "q_starts": jnp.cumsum(jnp.array((0, *COUNTS), jnp.int32)),
    }
    given = {k: jnp.asarray(v) if k == "sinks" else v for k, v in options.items()}
    out = reference.paged_attention(jnp.asarray(q), jnp.asarray(pages), **rows, **given)
    # Sums of at most 12 products with float32 rounding of 6e-8.
    np.testing.assert_allclose(out, _oracle(q, pages, **options), rtol=0, atol=3e-6)


@pytest.mark.parametrize("latent", [False, True])
def test_writing_changes_the_given_slots_alone(latent):
    _, pages = _inputs(latent)
    rng = np.random.default_rng(1)
    k, v = rng.standard_normal((2, 3, KV_HEADS, WIDTH)).astype(np.float32)
    slots = np.array([16, -1, 2], np.int32)
    want = pages.copy()
    for i in (0, 2):
        want[slots[i] // PAGE, 0, slots[i] % PAGE] = k[i]
        if not latent:
            want[slots[i] // PAGE, 1, slots[i] % PAGE] = v[i]
    given = None if latent else jnp.asarray(v)
    got = reference.paged_write(jnp.asarray(pages), jnp.asarray(k), given, slots=jnp.asarray(slots))
    np.testing.assert_array_equal(got, want)


@pytest.mark.thorough
def test_a_row_draws_by_its_own_key():
    rng = np.random.default_rng(2)
    logits = jnp.asarray(rng.standard_normal((5, 41)), jnp.float32)
    keys = jax.random.split(jax.random.key(3), 5)
    together = reference.sample(logits, keys=keys)
    alone = [int(reference.sample(logits[i : i + 1], keys=keys[i : i + 1])[0]) for i in range(5)]
    assert together.tolist() == alone
    other = reference.sample(logits, keys=jax.random.split(jax.random.key(4), 5))
    assert other.tolist() != alone


def test_rows_without_a_distribution_draw_minus_one():
    logits = np.zeros((3, 7), np.float32)
    logits[0, 3] = np.nan
    logits[1] = -np.inf
    keys = jax.random.split(jax.random.key(0), 3)
    drawn = reference.sample(jnp.asarray(logits), keys=keys)
    assert drawn[:2].tolist() == [-1, -1]
    assert 0 <= int(drawn[2]) < 7


def test_the_module_is_an_operations():
    assert isinstance(reference, Operations)

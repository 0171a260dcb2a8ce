# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""As an engine calls it: a decoder's [B, T] batches over one cache, prefill in chunks, then tokens.

A request takes a page when it needs one, from pages that are not in order. What the layer gives for
each token is what causal attention over the whole contiguous sequence gives.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.paged.api import paged_attention
from dovetail_kernels.paged.write import paged_write

pytestmark = pytest.mark.thorough

HEADS, KV_HEADS, WIDTH, PAGE, COLUMNS = 4, 2, 8, 4, 12
TIME = 16  # columns of a batch, most of them padding when requests decode
TOTALS = (37, 22, 5)  # tokens of each request in the end
CHUNKS = ((16, 1, 0), (16, 16, 0), (1, 1, 3), (1, 1, 1), (3, 3, 1))  # rows of each, step by step


@functools.partial(jax.jit, donate_argnums=0)
def layer(pages, q, k, v, positions, where, page_table):
    """Attention of a decoder whose batch is [B, T]; `where` bool[B, T] is true for real tokens.

    Rows of a request stand together, as q_starts says; so those that are no tokens go to the end.
    """
    batch, time = where.shape
    flat = where.reshape(-1)
    order = jnp.argsort(~flat, stable=True)
    page = jnp.take_along_axis(page_table, positions // PAGE, axis=1)
    slots = jnp.where(where, page * PAGE + positions % PAGE, -1).reshape(-1)
    rows = (x.reshape(batch * time, *x.shape[2:]) for x in (k, v))
    pages = paged_write(pages, *rows, slots=slots)
    counts = where.sum(axis=1, dtype=jnp.int32)
    out = paged_attention(
        q.reshape(batch * time, HEADS, WIDTH)[order],
        pages,
        page_table=page_table,
        kv_lengths=jnp.where(counts > 0, positions.max(axis=1, where=where, initial=0) + 1, 0),
        q_starts=jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(counts, dtype=jnp.int32)]),
    )
    return pages, jnp.zeros_like(out).at[order].set(out).reshape(q.shape)


def contiguous(q, k, v):
    """Causal attention of one sequence, [T, heads, width], in NumPy."""
    k, v = (np.repeat(x, HEADS // KV_HEADS, axis=1) for x in (k, v))
    scores = np.einsum("tnh,snh->nts", q, k) / np.sqrt(WIDTH)
    scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("nts,snh->tnh", weights / weights.sum(-1, keepdims=True), v)


def test_chunks_and_tokens_over_pages_equal_one_contiguous_sequence():
    rng = np.random.default_rng(0)
    sequences = [
        [rng.standard_normal((total, heads, WIDTH)) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        for total in TOTALS
    ]
    free = rng.permutation(len(TOTALS) * COLUMNS).tolist()
    table = np.full((len(TOTALS), COLUMNS), -1, np.int32)
    pages = jnp.full((len(free), 2, PAGE, KV_HEADS, WIDTH), jnp.nan)
    done, found = [0] * len(TOTALS), [[] for _ in TOTALS]
    for counts in CHUNKS:
        where = np.arange(TIME)[None] < np.array(counts)[:, None]
        positions = (np.array(done)[:, None] + np.arange(TIME)).astype(np.int32) * where
        batch = [np.zeros((len(TOTALS), TIME, n, WIDTH)) for n in (HEADS, KV_HEADS, KV_HEADS)]
        for r, count in enumerate(counts):
            for new, whole in zip(batch, sequences[r], strict=True):
                new[r, :count] = whole[done[r] : done[r] + count]
            for column in range(-(-(done[r] + count) // PAGE)):
                if table[r, column] < 0:
                    table[r, column] = free.pop()
        arrays = [jnp.asarray(x, jnp.float32) for x in batch]
        pages, out = layer(pages, *arrays, positions, where, table)
        for r, count in enumerate(counts):
            found[r] += list(np.asarray(out[r, :count]))
            done[r] += count
    assert tuple(done) == TOTALS
    for rows, sequence in zip(found, sequences, strict=True):
        np.testing.assert_allclose(np.stack(rows), contiguous(*sequence), rtol=0, atol=2e-5)

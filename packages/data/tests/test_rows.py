# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from dovetail_data import batches, pack, pad
from dovetail_data.rows.rows import generator


def drop_some(row, rng):
    """Masks about half of the targets."""
    return {**row, "mask": row["mask"] * rng.integers(0, 2, row["mask"].shape)}


def test_each_row_passes_through_the_function(corpus_of):
    rows = pad(corpus_of([5, 4, 3]), length=6)
    mapped = rows.map(lambda row, rng: {"sum": row["tokens"].sum(), "first": row["tokens"][:1]})
    batch = mapped.batch(np.array([2, 0]))
    plain = rows.batch(np.array([2, 0]))
    assert batch["sum"].tolist() == plain["tokens"].sum(axis=1).tolist()
    assert batch["first"].tolist() == plain["tokens"][:, :1].tolist()
    assert (len(mapped), mapped.fingerprint) == (3, rows.fingerprint)
    assert mapped.explain(1) == rows.explain(1)
    assert mapped[1]["sum"] == rows[1]["tokens"].sum()


@pytest.mark.parametrize("hosts, global_batch", [(2, 4), (3, 3), (1, 1)])
def test_the_same_numbers_on_any_hosts_and_for_any_batch(corpus_of, hosts, global_batch):
    rows = pack(corpus_of([7, 3, 12, 5, 2, 2, 9]), length=6).map(drop_some)
    expected = np.concatenate(
        [batch["mask"] for batch in batches(rows, global_batch=2, seed=4, epochs=6)]
    )
    parts = [
        batches(rows, global_batch=global_batch, seed=4, epochs=6, shard=(i, hosts))
        for i in range(hosts)
    ]
    got = np.concatenate([batch["mask"] for step in zip(*parts, strict=True) for batch in step])
    count = min(len(expected), len(got))
    np.testing.assert_array_equal(got[:count], expected[:count])
    assert 0 < expected.sum() < (expected >= 0).sum() / 2


def test_a_host_without_rows_still_gives_arrays(corpus_of):
    rows = pad(corpus_of([5, 4, 3]), length=4).map(drop_some)
    (batch,) = batches(rows, global_batch=8, seed=0, epochs=1, shard=(3, 4))
    assert batch["mask"].shape == (2, 4)
    assert not batch["segment_ids"].any()


def test_the_generator_depends_on_its_key_alone():
    values = [generator(key).integers(0, 1 << 30) for key in (7, 8, 7)]
    assert values[0] == values[2] != values[1]


@pytest.mark.thorough
def test_another_seed_draws_other_numbers_at_the_same_place(corpus_of):
    rows = pad(corpus_of([5]), length=4).map(lambda row, rng: {"draw": rng.random(3)})
    draws = [batches(rows, global_batch=1, seed=s).batch(7)["draw"] for s in (1, 1, 2, None)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert len(np.unique(draws)) == 9

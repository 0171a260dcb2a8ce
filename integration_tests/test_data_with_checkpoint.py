# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A data iterator is an item of a checkpoint: restored, it gives the batches that were to come."""

import numpy as np
import pytest

from dovetail_checkpoint import Store
from dovetail_data import Bytes, Text, batches, pack, text, write

pytestmark = pytest.mark.capability("data positions saved and restored with the model")


@pytest.fixture
def rows(tmp_path):
    for i in range(9):
        (tmp_path / f"{i}.txt").write_text(f"{i} " * (5 + 3 * i))
    corpus = write(text(tmp_path), tmp_path / "corpus", encoder=Text(Bytes()))
    return pack(corpus, length=16, seed=0)


def test_the_batches_after_a_restore_are_those_that_would_have_come(rows, tmp_path):
    iterator = batches(rows, global_batch=3, seed=5)
    for _ in range(11):  # past the end of an epoch
        next(iterator)
    with Store(tmp_path / "run") as store:
        store.save(11, data=iterator)
    expected = [next(iterator) for _ in range(8)]

    resumed = batches(rows, global_batch=3, seed=5)
    with Store(tmp_path / "run") as store:
        step, _ = store.restore(data=resumed)
    assert step == 11
    for batch in expected:
        got = next(resumed)
        assert got.keys() == batch.keys()
        for name in batch:
            np.testing.assert_array_equal(got[name], batch[name])


def test_the_state_of_other_rows_is_refused_and_the_iterator_stays_where_it_was(rows, tmp_path):
    with Store(tmp_path / "run") as store:
        store.save(1, data=batches(rows, global_batch=3, seed=5))
        store.wait()
        other = batches(rows, global_batch=3, seed=6)
        with pytest.raises(ValueError, match="seed"):
            store.restore(data=other)
    np.testing.assert_array_equal(
        next(other)["tokens"], next(batches(rows, global_batch=3, seed=6))["tokens"]
    )

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Any number of rows equals the call without padding, in order, with the fewest runs."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_serve.loading.call import call_rows, read_only
from dovetail_serve.types import Tensor

OUTPUTS = {"y": Tensor(("batch", 2), "float64"), "n": Tensor(("batch",), "int32")}


class Program:
    """A function of rows that keeps what it was given."""

    def __init__(self):
        self.runs = []

    def __call__(self, inputs, rows):
        assert inputs["x"].shape == (rows, 3)
        assert inputs["x"].dtype == np.float64
        self.runs.append((rows, np.array(inputs["x"])))
        return expected(inputs["x"])


def expected(x):
    return {"y": np.stack([x.sum(1), x[:, 0] - x[:, 2]], axis=1), "n": x[:, 1].astype("int32")}


@pytest.mark.thorough
@given(
    rows=st.integers(0, 40),
    batch_sizes=st.sets(st.integers(1, 16), min_size=1, max_size=4).map(sorted),
    seed=st.integers(0, 9),
)
def test_rows_come_back_in_order(rows, batch_sizes, seed):
    x = np.random.default_rng(seed).normal(size=(rows, 3)) * 5
    before = x.copy()
    program = Program()
    results = call_rows(program, {"x": x}, rows=rows, batch_sizes=batch_sizes, outputs=OUTPUTS)
    assert results.keys() == expected(x).keys()
    for name, values in expected(x).items():
        np.testing.assert_array_equal(results[name], values)
        assert results[name].dtype == OUTPUTS[name].dtype
        assert results[name].flags.owndata
        assert results[name].flags.writeable
    np.testing.assert_array_equal(x, before)
    sizes = [size for size, _ in program.runs]
    assert len(sizes) == -(-rows // batch_sizes[-1])
    assert all(size == batch_sizes[-1] for size in sizes[:-1])
    if sizes:
        rest = rows - batch_sizes[-1] * (len(sizes) - 1)
        assert sizes[-1] == min(size for size in batch_sizes if size >= rest)
        # Padding is zeros behind the rows.
        given = np.concatenate([values for _, values in program.runs])
        np.testing.assert_array_equal(given[:rows], x)
        assert not given[rows:].any()


def test_host_functions_get_views_that_they_cannot_write():
    x = np.random.default_rng(0).normal(size=(3, 2))
    views = read_only({"x": x, "y": jax.numpy.asarray(x)})
    assert np.shares_memory(views["x"], x)
    assert x.flags.writeable
    for view in views.values():
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1

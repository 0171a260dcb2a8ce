# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The example is checked against the inputs, and run in batches of the bundle's sizes."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_serve import Tensor
from dovetail_serve.exporting.example import check_example, inputs_of, run_example

INPUTS = {"x": Tensor(("batch", 3), "float32"), "n": Tensor(("batch",), "int32")}
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(5, 3)).astype("float32")
N = GENERATOR.integers(0, 9, 5, dtype="int32")


def test_inputs_are_those_of_the_example_for_any_number_of_rows():
    assert inputs_of({"x": X, "n": jnp.asarray(N)}) == INPUTS
    with pytest.raises(TypeError, match=r"must hold arrays, got 'n' of type list; write np"):
        inputs_of({"x": X, "n": [1, 2]})
    with pytest.raises(ValueError, match=r"axis of rows, got 'n' of shape=\(\); .* write inputs="):
        inputs_of({"n": np.zeros(())})


def test_returns_arrays_in_the_order_of_the_inputs():
    arrays = check_example(INPUTS, {"n": jnp.asarray(N), "x": X}, batch_sizes=(1, 4))
    assert list(arrays) == ["x", "n"]
    assert all(type(array) is np.ndarray for array in arrays.values())
    np.testing.assert_array_equal(arrays["n"], N)


def test_the_other_byte_order_is_converted():
    arrays = check_example(INPUTS, {"x": X.astype(">f4"), "n": N.astype(">i4")}, batch_sizes=(4,))
    assert [array.dtype for array in arrays.values()] == [np.float32, np.int32]
    assert all(array.dtype.isnative for array in arrays.values())
    np.testing.assert_array_equal(arrays["x"], X)
    np.testing.assert_array_equal(arrays["n"], N)


def test_arrays_of_the_caller_may_change_afterwards():
    x = X.copy()
    arrays = check_example(INPUTS, {"x": x, "n": N}, batch_sizes=(4,))
    x *= 2
    np.testing.assert_array_equal(arrays["x"], X)


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ({"x": X}, r"got example=\['x'\] for inputs=\['n', 'x'\]; write example=\{'x': .*'n'"),
        ({"x": X, "n": N, "z": N}, r"array for each input, got example=\['n', 'x', 'z'\]"),
        ({"x": X.astype("float64"), "n": N}, r"'x' must .*'float32', got dtype='float64'; write"),
        ({"x": X[:, :2], "n": N}, r"'x' must .*\('batch', 3\), got shape=\(5, 2\); give"),
        ({"x": X[0], "n": N}, r"'x' must .*\('batch', 3\), got shape=\(3,\); give"),
        ({"x": np.asarray(1, "float32"), "n": N}, r"got shape=\(\); give"),
        ({"x": X, "n": N[:4]}, r"same number of rows, got rows=\{'x': 5, 'n': 4\}; cut"),
        ({"x": X[:1], "n": N[:1]}, r"at least 2 rows for batch_sizes=\(1, 4\), got rows=1; give"),
    ],
)
def test_wrong_examples_are_refused(example, message):
    with pytest.raises(ValueError, match=message):
        check_example(INPUTS, example, batch_sizes=(1, 4))


def test_lists_are_refused():
    with pytest.raises(TypeError, match=r"'x' of type list; write np.asarray\(value, 'float32'\)"):
        check_example(INPUTS, {"x": X.tolist(), "n": N}, batch_sizes=(4,))


def test_one_row_is_enough_for_one_row_at_a_time():
    arrays = check_example(INPUTS, {"x": X[:1], "n": N[:1]}, batch_sizes=(1,))
    assert len(arrays["x"]) == 1
    with pytest.raises(ValueError, match="at least 1 rows"):
        check_example(INPUTS, {"x": X[:0], "n": N[:0]}, batch_sizes=(1,))


def test_example_without_a_batch_axis():
    inputs = {"x": Tensor((5, 3), "float32")}
    np.testing.assert_array_equal(check_example(inputs, {"x": X}, batch_sizes=())["x"], X)
    with pytest.raises(ValueError, match=r"\(5, 3\), got shape=\(4, 3\); give an array"):
        check_example(inputs, {"x": X[:4]}, batch_sizes=())


@pytest.mark.thorough
@given(
    rows=st.integers(1, 12),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3, unique=True).map(sorted),
)
@settings(max_examples=60, deadline=None)
def test_example_runs_in_the_smallest_batch_that_holds_it(rows, sizes):
    x = np.random.default_rng(rows).normal(size=(rows, 2))
    batches = []

    def run(arrays):
        batches.append(arrays["x"])
        return {"y": 2 * arrays["x"]}

    outputs = run_example(run, {"x": x}, batch_sizes=sizes)
    np.testing.assert_array_equal(outputs["y"], 2 * x)
    lengths = {len(batch) for batch in batches}
    fitting = [size for size in sizes if size >= rows]
    assert lengths == {min(fitting, default=max(sizes))}
    assert len(batches) == -(-rows // lengths.pop())
    np.testing.assert_array_equal(np.concatenate(batches)[rows:], 0)

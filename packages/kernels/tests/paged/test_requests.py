# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Values that contradict each other: an error where they are known, NaN where they are traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.paged.api import paged_attention, plan_paged_attention
from dovetail_kernels.paged.requests import requests

PAGES, PAGE, ROWS = 9, 4, 6
q = jax.random.normal(jax.random.key(0), (ROWS, 4, 8))
pages = jax.random.normal(jax.random.key(1), (PAGES, 2, PAGE, 2, 8))
GOOD = {
    "page_table": np.array([[3, 1, -1, 99], [8, 0, 5, 2]], np.int32),
    "kv_lengths": np.array([7, 16], np.int32),
    "q_starts": np.array([0, 3, 5], np.int32),
}
run = {
    (impl, window): jax.jit(
        lambda numbers, impl=impl, window=window: paged_attention(
            q, pages, **numbers, impl=impl, window=window
        )
    )
    for impl in ("gather", "reference")
    for window in (None, 3)
}


def changed(name, at, value):
    array = GOOD[name].copy()
    array[at] = value
    return {**GOOD, name: array}


@pytest.mark.parametrize(
    "name, at, value, message",
    [
        ("page_table", (1, 2), 9, r"pages 0 to 8 .* got page_table\[1, 2\]=9 with kv_lengths\[1\]"),
        ("page_table", (0, 1), -1, r"got page_table\[0, 1\]=-1 .* Give that request a page"),
        ("kv_lengths", 0, 2, r"from 3 queries to 4 pages of 4 keys, got kv_lengths\[0\]=2. Count"),
        ("kv_lengths", 1, 17, r"from 2 queries .* got kv_lengths\[1\]=17. .* or widen page_table"),
        ("q_starts", 0, 1, r"begin with 0, .* got q_starts\[0\]=1 in \[1, 3, 5\]. Use the cumul"),
        ("q_starts", 1, -1, r"never fall, .* got q_starts\[1\]=-1"),
        ("q_starts", 1, 6, r"got q_starts\[2\]=5 in \[0, 6, 5\]"),
        ("q_starts", 2, 7, r"end within the 6 rows of q, got q_starts\[-1\]=7"),
    ],
)
def test_known_values_are_an_error(name, at, value, message):
    numbers = changed(name, at, value)
    with pytest.raises(ValueError, match=message):
        paged_attention(q, pages, **numbers)
    numbers = {key: jnp.asarray(array) for key, array in numbers.items()}
    with pytest.raises(ValueError, match=message):
        paged_attention(q, pages, **numbers)


@pytest.mark.parametrize("impl", ["gather", "reference"])
@pytest.mark.parametrize(
    "name, at, value, bad",
    [
        ("page_table", (1, 2), 9, [3, 4]),
        ("page_table", (0, 1), -1, [0, 1, 2]),
        ("kv_lengths", 0, 2, [0, 1, 2]),
        ("kv_lengths", 1, 17, [3, 4]),
        ("kv_lengths", 1, -(2**31), [3, 4]),
        ("q_starts", 0, 1, range(6)),
        ("q_starts", 1, -1, range(6)),
        ("q_starts", 1, 6, range(6)),
        ("q_starts", 2, 7, range(6)),
    ],
)
def test_traced_values_give_nan_to_the_rows_that_have_no_answer(impl, name, at, value, bad):
    good = run[impl, None](GOOD)
    found = run[impl, None](changed(name, at, value))
    is_bad = np.isin(np.arange(ROWS), list(bad))
    assert np.isnan(found[is_bad]).all()
    np.testing.assert_array_equal(found[~is_bad], good[~is_bad])
    np.testing.assert_array_equal(good[5], np.zeros((4, 8)))


@pytest.mark.thorough
def test_requests_without_an_answer_have_no_rows_to_compute():
    call = plan_paged_attention(q, pages, **GOOD).call
    numbers = map(jnp.asarray, changed("kv_lengths", 1, 2**31 - 1).values())
    batch = requests(call, *numbers)
    np.testing.assert_array_equal(batch.counts, [3, 0])
    np.testing.assert_array_equal(batch.page_ids, [[3, 1, 0, 0], [0, 0, 0, 0]])


@pytest.mark.thorough
@pytest.mark.parametrize("impl", ["gather", "reference"])
def test_pages_before_the_window_may_have_been_given_back(impl):
    numbers = changed("page_table", (1, slice(0, 3)), [-1, 77, 5])
    good = run[impl, 3](GOOD)
    np.testing.assert_array_equal(run[impl, 3](numbers), good)
    np.testing.assert_array_equal(
        paged_attention(q, pages, **numbers, impl="reference", window=3), run["reference", 3](GOOD)
    )
    with pytest.raises(ValueError, match=r"got page_table\[1, 3\]=-1"):
        paged_attention(q, pages, **changed("page_table", (1, 3), -1), window=3)


@pytest.mark.thorough
def test_a_request_without_queries_needs_no_pages():
    numbers = changed("q_starts", slice(None), [0, 0, 2])
    numbers["page_table"] = np.array([[-1] * 4, [8, 0, 5, 2]], np.int32)
    found = run["gather", None](numbers)
    known = paged_attention(q, pages, **numbers, impl="reference")
    np.testing.assert_allclose(found, known, rtol=0, atol=1e-6)
    assert np.isfinite(found).all()
    assert np.abs(found[:2]).min() > 0

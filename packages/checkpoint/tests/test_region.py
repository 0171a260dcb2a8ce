# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_checkpoint.layout import region
from dovetail_checkpoint.layout.region import spans


def gathered(data: bytes, array: np.ndarray, part: tuple) -> tuple[np.ndarray, int]:
    """The region put together from its spans of `data`, and the bytes that they cover."""
    out = np.zeros([stop - start for start, stop in part], array.dtype)
    seen = 0
    for span in spans(array.shape, array.itemsize, part):
        count = int(np.prod(span.shape))
        found = np.frombuffer(data, array.dtype, count, span.start).reshape(span.shape)
        out[span.outside] = found if span.inside is None else found[span.inside]
        seen += count * array.itemsize
    return out, seen


@st.composite
def regions(draw):
    shape = draw(st.lists(st.integers(0, 7), max_size=4))
    part = []
    for n in shape:
        start = draw(st.integers(0, n))
        part.append((start, draw(st.integers(start, n))))
    return tuple(shape), tuple(part)


@settings(deadline=None, max_examples=60)
@given(regions(), st.sampled_from([1, 24, 200]), st.sampled_from([1, 16, 100]))
def test_spans_put_together_are_the_region(case, span_bytes, long_bytes):
    shape, part = case
    array = np.random.default_rng(0).integers(0, 1000, shape).astype(np.int16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region, "_SPAN_BYTES", span_bytes)
        patch.setattr(region, "_LONG_BYTES", long_bytes)
        out, _ = gathered(array.tobytes(), array, part)
    np.testing.assert_array_equal(out, array[tuple(slice(*extent) for extent in part)])


def test_whole_rows_are_one_span_and_nothing_else_is_read():
    array = np.zeros((9, 5, 3), np.float32)
    found = list(spans(array.shape, 4, ((2, 6), (0, 5), (0, 3))))
    assert [(span.start, span.shape, span.inside) for span in found] == [(120, (4, 5, 3), None)]


def test_long_runs_are_spans_of_their_own():
    shape = (3, 4, region._LONG_BYTES)
    found = list(spans(shape, 1, ((0, 3), (1, 3), (0, shape[2]))))
    assert [span.shape for span in found] == [(2, shape[2])] * 3
    assert all(span.inside is None for span in found)


def test_short_runs_share_spans():
    array = np.arange(64 * 1000, dtype=np.int32).reshape(64, 1000)
    part = ((0, 64), (3, 5))
    found = list(spans(array.shape, 4, part))
    assert len(found) == 1
    out, _ = gathered(array.tobytes(), array, part)
    np.testing.assert_array_equal(out, array[:, 3:5])


def test_runs_end_at_the_first_axis_that_is_cut():
    # 40 runs of 2048 bytes in each row: not one of 81920.
    found = list(spans((3, 64, 4096), 1, ((0, 3), (0, 40), (0, 2048))))
    assert [span.shape for span in found] == [(3, 64, 4096)]


def test_a_scalar_is_one_span():
    assert [span.shape for span in spans((), 8, ())] == [()]


def test_no_element_is_no_span():
    assert list(spans((4, 5), 4, ((1, 1), (0, 5)))) == []

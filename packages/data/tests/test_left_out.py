# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Left-out places, against a NumPy list of the order from which they are deleted."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_data import batches, mix, pack, pad
from dovetail_data.rows.order import LeftOut

RANGES = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 12)).map(lambda x: range(x[0], sum(x))), max_size=4
)


@pytest.fixture(scope="module")
def rows(corpus_of):
    lengths = np.random.default_rng(0).integers(2, 30, 57).tolist()
    return pack(corpus_of(lengths), length=13, seed=0)


@pytest.fixture(scope="module")
def mixture(corpus_of):
    sources = {"a": [5] * 11, "b": [5] * 17}
    return mix(
        {name: pad(corpus_of(lengths), length=4) for name, lengths in sources.items()},
        weights={"a": 0.3, "b": 0.7},
    )


def kept_of(ranges, count):
    """The first `count` kept places."""
    everything = np.arange(count + sum(len(r) for r in ranges))
    return np.delete(everything, [p for r in ranges for p in r if p < len(everything)])[:count]


@given(ranges=RANGES)
def test_ranks_and_places_are_those_of_a_list_with_the_places_deleted(ranges):
    left_out = LeftOut(ranges)
    kept = kept_of(ranges, 100)
    np.testing.assert_array_equal(left_out.places(np.arange(100)), kept)
    for place in range(80):
        assert left_out.rank(place) == np.count_nonzero(kept < place)
    gone = sorted({p for r in ranges for p in r if p < 33})
    assert sorted(p for r in left_out.before(33) for p in r) == gone


def same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name])


def stacked(parts):
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@pytest.mark.thorough
@given(ranges=RANGES, hosts=st.sampled_from([1, 2, 4]), seed=st.sampled_from([None, 3]))
@settings(max_examples=12, deadline=None)
def test_batches_are_those_of_the_order_without_the_places(rows, ranges, hosts, seed):
    one_by_one = batches(rows, global_batch=1, seed=seed)
    kept = kept_of(ranges, 24)
    expected = [one_by_one.batch(int(place)) for place in kept]
    options = {"global_batch": 4, "seed": seed, "leave_out": ranges}
    parts = [batches(rows, shard=(i, hosts), **options) for i in range(hosts)]
    for step in range(6):
        same(stacked([next(host) for host in parts]), stacked(expected[4 * step : 4 * step + 4]))
        assert {host.get_state()["row"] for host in parts} == {int(kept[4 * step + 3]) + 1}
        assert set(parts[0].places(step)) >= set(kept[4 * step : 4 * step + 4].tolist())
        explained = parts[0].explain(step)
        assert explained == [one_by_one.explain(int(p))[0] for p in kept[4 * step : 4 * step + 4]]


@pytest.mark.thorough
@given(ranges=RANGES)
@settings(max_examples=8, deadline=None)
def test_a_run_with_left_out_places_resumes_after_every_step_in_any_shape(rows, ranges):
    whole = batches(rows, global_batch=1, seed=1, leave_out=ranges)
    one_by_one = [next(whole) for _ in range(30)]
    it = batches(rows, global_batch=4, seed=1, leave_out=ranges)
    for step in range(1, 6):
        next(it)
        for size in (3, 4):
            resumed = batches(rows, global_batch=size, seed=1, leave_out=ranges)
            resumed.set_state(json.loads(json.dumps(it.get_state())))
            same(next(resumed), stacked(one_by_one[4 * step : 4 * step + size]))


def test_a_state_from_before_the_places_goes_on_without_them(rows):
    plain = batches(rows, global_batch=4, seed=1)
    states = [plain.get_state()]
    for _ in range(9):
        next(plain)
        states.append(plain.get_state())
    left = [plain.places(5), plain.places(6)]
    assert left == [range(20, 24), range(24, 28)]
    for step in range(6):
        it = batches(rows, global_batch=4, seed=1, leave_out=left)
        it.set_state(states[step])
        got = [next(it) for _ in range(8 - step)]
        expected = [plain.batch(i) for i in (*range(step, 5), *range(7, 10))]
        for one, other in zip(got, expected, strict=True):
            same(one, other)
    late = batches(rows, global_batch=4, seed=1, leave_out=left)
    with pytest.raises(ValueError, match=r"of the same leave_out: got .*from before they were"):
        late.set_state(states[6])
    next(late)
    late.set_state(states[5])
    state = next(late) and late.get_state()  # after the first batch beyond the places
    assert "leave_out=20:28" in state["fingerprint"]
    with pytest.raises(ValueError, match="of the same leave_out"):
        plain.set_state(state)
    plain.set_state(states[5])


@pytest.mark.parametrize("ahead", [{"threads": 2}, {"threads": 1}])
def test_rows_read_ahead_are_left_out_too(rows, ahead):
    left = [range(3, 9), range(40, 41)]
    it = batches(rows, global_batch=5, seed=2, leave_out=left)
    other = batches(rows, global_batch=5, seed=2, leave_out=left, **ahead)
    for _ in range(12):
        same(next(it), next(other))
    other.close()


def test_epochs_end_after_the_last_kept_row(rows):
    left = [range(len(rows) - 2, len(rows) + 3), range(2 * len(rows) - 4, 2 * len(rows))]
    it = batches(rows, global_batch=4, seed=0, epochs=2, leave_out=left)
    kept = 2 * len(rows) - 9
    assert len(it) == -(-kept // 4)
    got = list(it)
    assert len(got) == len(it)
    filled = sum(int((batch["segment_ids"] > 0).any(1).sum()) for batch in got)
    assert filled == kept
    end = it.get_state()
    assert end["row"] == 2 * len(rows) - 4
    it.set_state(end)
    with pytest.raises(StopIteration):
        next(it)


def test_a_mixture_counts_the_rows_that_were_delivered(mixture):
    left = [range(2, 9), range(15, 16)]
    it = batches(mixture, global_batch=4, seed=0, leave_out=left)
    for _ in range(6):
        next(it)
    kept = kept_of(left, 24)
    drawn = mixture.draws(0)(kept)
    a = int((drawn < len(mixture.sources["a"])).sum())
    assert dict(it.stats().rows) == {"a": a, "b": 24 - a}


def test_map_sees_the_place_of_a_row_and_not_its_rank(rows):
    noisy = rows.map(lambda row, rng: {**row, "noise": rng.integers(1 << 30, size=1)})
    plain = batches(noisy, global_batch=1, seed=0)
    it = batches(noisy, global_batch=1, seed=0, leave_out=[range(2, 5)])
    for place in (0, 1, 5, 6):
        same(next(it), plain.batch(place))


@pytest.mark.parametrize(
    "given, text",
    [
        ([range(5, 5)], r"count up by 1 from 0 or more: got range\(5, 5\)\. Pass"),
        ([range(0, 9, 2)], r"count up by 1 .* got range\(0, 9, 2\)\. Pass"),
        ([range(-2, 3)], r"from 0 or more: got range\(-2, 3\)\. Pass"),
    ],
)
def test_bad_ranges_are_refused(rows, given, text):
    with pytest.raises(ValueError, match=text):
        batches(rows, global_batch=2, seed=0, leave_out=given)


def test_ranges_beyond_the_rows_are_refused(rows):
    n = len(rows)
    batches(rows, global_batch=2, seed=0, leave_out=[range(n, 10 * n)])  # without an end
    with pytest.raises(ValueError, match=rf"in the {n} rows of the epochs: got .*{n + 1}\)\. Pass"):
        batches(rows, global_batch=2, seed=0, epochs=1, leave_out=[range(n - 1, n + 1)])
    with pytest.raises(ValueError, match=rf"must leave a row: got 0:{n} of {n}\. Pass smaller"):
        batches(rows, global_batch=2, seed=0, epochs=1, leave_out=[range(n)])

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail_data.mixture.timeline import Timeline


def turn(counts, n, given):
    """Whose turn it is at place n = 1, 2, .. of a segment, by Tijdeman's rule."""
    weights = [Fraction(c, sum(counts)) for c in counts]
    k = sum(c > 0 for c in counts)
    least = Fraction(1, 2 * k - 2) if k > 1 else Fraction(0)
    behind = [weight * n - x for weight, x in zip(weights, given, strict=True)]
    eligible = [j for j, by in enumerate(behind) if weights[j] and by >= least]
    return min(eligible, key=lambda j: (1 - least - behind[j]) / weights[j])


def one_epoch(starts, stages, sizes, exhausted, most):
    """The sources of the first epoch, place by place, at most `most`; and whether it ended."""
    order: list[int] = []
    given = [0] * len(sizes)
    before = None
    while True:
        stage = max(i for i, start in enumerate(starts) if start <= len(order))
        used_up = [n == size for n, size in zip(given, sizes, strict=True)]
        counts = stages[stage]
        if exhausted == "drop":
            counts = [0 if up else c for c, up in zip(counts, used_up, strict=True)]
        if not any(counts):
            return order, True
        if (stage, counts) != before:
            before, n, within = (stage, counts), 0, [0] * len(sizes)
        j = turn(counts, n + 1, within)
        if exhausted == "stop" and used_up[j]:
            return order, True
        if len(order) == most:  # an epoch of just so many places has ended above
            return order, False
        order.append(j)
        given[j], within[j], n = given[j] + 1, within[j] + 1, n + 1


@st.composite
def cases(draw):
    k = draw(st.integers(1, 4))
    counts = st.lists(st.integers(0, 5), min_size=k, max_size=k).filter(any)
    stages = draw(st.lists(counts, min_size=1, max_size=3))
    gaps = draw(st.lists(st.integers(1, 12), min_size=len(stages), max_size=len(stages)))
    starts = np.cumsum([0, *gaps[1:]]).tolist()
    sizes = draw(st.lists(st.integers(1, 15) | st.none(), min_size=k, max_size=k))
    return starts, stages, sizes, draw(st.sampled_from(["repeat", "stop", "drop"]))


@given(case=cases())
@example(
    case=([0, 1, 10], [[0, 0, 0, 1], [0, 0, 0, 1], [0, 3, 1, 5]], [None, None, 15, None], "stop")
)
@settings(max_examples=80, deadline=None)
def test_every_policy_is_what_place_by_place_gives(case):
    starts, stages, sizes, exhausted = case
    most = 150
    first, ended = one_epoch(starts, stages, sizes, exhausted, most)

    def make():
        return Timeline(starts, [np.array(s) for s in stages], sizes=sizes, exhausted=exhausted)

    if ended and len(starts) > 1 and len(first) <= starts[-1]:
        with pytest.raises(ValueError, match=rf"used up after {len(first)} rows"):
            make()
        return
    timeline = make()
    if ended:
        assert timeline.epoch == len(first)
    else:  # never, or behind the rows that are compared
        assert timeline.epoch is None or timeline.epoch > most
    epochs = 3 if ended else 1
    once = np.bincount(np.array(first, int), minlength=len(sizes))
    steps = np.array([n if size is None else size for n, size in zip(once, sizes, strict=True)])
    expected = [
        (j, first[:i].count(j) + e * int(steps[j]))
        for e in range(epochs)
        for i, j in enumerate(first)
    ]
    places = np.random.default_rng(0).permutation(len(expected))
    source, nth = timeline.at(places)
    assert list(zip(source.tolist(), nth.tolist(), strict=True)) == [expected[i] for i in places]
    for place in places[:5].tolist():
        drawn = timeline.drawn(place)
        assert drawn.tolist() == [
            sum(source == j for source, _ in expected[:place]) for j in range(len(sizes))
        ]
        reached = timeline.reached(place)
        for j in range(len(sizes)):
            used = [n for source, n in expected[:place] if source == j]
            assert reached[j] > max(used, default=-1)


@pytest.mark.parametrize("exhausted", ["stop", "drop"])
def test_a_stage_after_the_end_of_the_epoch_is_an_error(exhausted):
    stages = [np.array([1, 1]), np.array([1, 2])]
    message = (
        r"must begin within the epoch: got start=8 where .* used up after 8 rows. Begin it before "
        'row 8, or pass exhausted="repeat"'
    )
    with pytest.raises(ValueError, match=message):
        Timeline([0, 8], stages, sizes=[4, 4], exhausted=exhausted)
    Timeline([0, 8], stages, sizes=[4, 4], exhausted="repeat")
    Timeline([0, 7], stages, sizes=[4, 4], exhausted=exhausted)

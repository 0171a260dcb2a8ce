# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The health of hosts, and their places."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from dovetail_cluster.control.hosts import PROBE_S, Pool, largest, places


def pool(*names):
    result = Pool()
    for number, name in enumerate(names):
        result.join(number, name)
        result.hosts[number].probing_since = 0.0
    return result


def test_a_host_is_usable_after_its_probe():
    hosts = pool("a", "b", "c", "d")
    assert (hosts.usable, hosts.promising) == ([], 4)
    hosts.probed(2, None)
    hosts.probed(1, "a device is lost")
    hosts.probed(0, None)
    hosts.hosts[0].noticed = True
    assert (hosts.usable, hosts.promising) == ([2], 2)
    hosts.lose(2, "no word for 10 s")
    hosts.lose(7, "unknown")
    assert (hosts.usable, hosts.promising) == ([], 1)
    assert str(hosts) == (
        "a will be taken away; b is sick: a device is lost; "
        "d is being probed; c is lost: no word for 10 s"
    )


def test_only_the_last_lost_hosts_are_named():
    hosts = pool(*"abcdefghij")
    for number in range(10):
        hosts.lose(number, "gone")
    assert list(hosts.lost) == list("cdefghij")
    hosts.join(10, "d")
    assert list(hosts.lost) == list("cefghij")
    assert str(hosts).count("d is ") == 1


def test_a_sick_host_is_not_waited_for_but_may_recover():
    hosts = pool("a")
    hosts.probed(0, "broken")
    hosts.hosts[0].probing_since = 5.0
    assert (hosts.usable, hosts.promising) == ([], 0)
    hosts.probed(0, None)
    assert (hosts.usable, hosts.promising) == ([0], 1)


def test_a_probe_that_does_not_end():
    hosts = pool("a", "b")
    hosts.probed(1, None)
    assert hosts.overdue(PROBE_S - 0.1) == []
    assert [host.number for host in hosts.overdue(PROBE_S)] == [0]
    assert hosts.hosts[0].sick == "its probe did not end within 120 s"
    assert hosts.overdue(PROBE_S) == []


@pytest.mark.parametrize(
    "count, allowed, expected",
    ((5, (2, 4, 8), 4), (1, (2, 4), None), (4, (4,), 4), (3, (), None), (9, (8, 2), 8)),
)
def test_largest(count, allowed, expected):
    assert largest(count, allowed) == expected


@pytest.mark.parametrize(
    "usable, previous, count, expected",
    (
        ((1, 2, 3), (), 2, (1, 2)),
        ((1, 2, 3), (3, 1), 2, (3, 1)),  # as before
        ((1, 2, 4), (3, 1), 2, (2, 1)),  # a spare for rank 0
        ((1, 4, 5), (3, 1, 4), 2, (4, 1)),  # the last rank moves
        ((1, 3, 4), (3, 1, 4), 2, (3, 1)),
        ((1, 3, 9), (3, 1), 3, (3, 1, 9)),
    ),
)
def test_places(usable, previous, count, expected):
    assert places(usable, previous, count) == expected


@settings(deadline=None, derandomize=True)
@given(st.data())
def test_places_are_distinct_and_hosts_keep_their_rank(data):
    usable = sorted(data.draw(st.sets(st.integers(0, 9), min_size=1)))
    previous = data.draw(st.lists(st.integers(0, 9), unique=True))
    count = data.draw(st.integers(1, len(usable)))
    chosen = places(usable, previous, count)
    assert len(set(chosen)) == count
    assert set(chosen) <= set(usable)
    for rank, host in enumerate(previous[:count]):
        assert chosen[rank] == host or host not in usable
    spares = set(chosen) - set(previous)
    assert not spares or set(previous) & set(usable) <= set(chosen)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The number of hosts, and how long to wait for more."""

import pytest

from dovetail_cluster import Elastic, HostsError
from dovetail_cluster.control.gathering import SETTLE_S, Gathering


def gathering(healthy=0, probing=0, sick=0, expected=3, hosts=(2, 3), previous=()):
    result = Gathering(Elastic(hosts=hosts, wait_s=60.0), expected)
    result.restart(0.0)
    result.previous = previous
    for number in range(healthy + probing + sick):
        result.pool.join(number, f"h{number}")
        result.pool.hosts[number].probing_since = 0.0
        if number < healthy or number >= healthy + probing:
            result.pool.probed(number, None if number < healthy else "broken")
    return result


@pytest.mark.parametrize(
    "options, now, expected",
    (
        ({"healthy": 3}, 0.0, (0, 1, 2)),
        ({"healthy": 4, "expected": 4}, 0.0, (0, 1, 2)),  # the fourth is a spare
        ({"healthy": 2}, SETTLE_S - 0.1, None),  # the third is expected
        ({"healthy": 2}, SETTLE_S, (0, 1)),
        ({"healthy": 2, "expected": 2}, 0.0, (0, 1)),
        ({"healthy": 2, "sick": 1}, 0.0, (0, 1)),  # nobody else will come
        ({"healthy": 2, "probing": 1}, 50.0, None),
        ({"healthy": 2, "previous": (1, 0, 7)}, 0.0, (1, 0)),  # later nobody is expected
        ({"healthy": 2, "probing": 1, "previous": (0, 1, 2)}, 0.0, None),
        ({"healthy": 3, "probing": 2, "previous": (0, 1, 2)}, 0.0, (0, 1, 2)),
        ({"healthy": 2, "hosts": None}, 50.0, None),
        ({"healthy": 3, "hosts": None}, 0.0, (0, 1, 2)),
    ),
)
def test_choose(options, now, expected):
    assert gathering(**options).choose(now) == expected


@pytest.mark.parametrize(
    "limit, expected, state",
    ((2, (0, 1), "waiting"), (3, (0, 1, 2), "waiting"), (0, None, "suspended")),
)
def test_limit(limit, expected, state):
    hosts = gathering(healthy=3)
    assert hosts.resize(limit) is None
    assert hosts.choose(0.0) == expected
    assert hosts.state == state
    assert hosts.resize(None) is None
    assert hosts.choose(0.0) == (0, 1, 2)


def test_a_limit_below_all_allowed_numbers_is_refused():
    hosts = gathering(healthy=3)
    assert hosts.resize(1) == (
        "a resize takes 0 or at least the least allowed number of hosts, 2, got 1; write "
        "Elastic(hosts=(1, 2)) to allow it"
    )
    assert hosts.choose(0.0) == (0, 1, 2)


@pytest.mark.capability("a wait for too few hosts")
def test_too_few_hosts():
    hosts = gathering(healthy=1, sick=1)
    hosts.pool.join(7, "h7")
    hosts.pool.lose(7, "no word for 10 s")
    assert hosts.choose(59.9) is None
    assert hosts.state == "waiting"
    with pytest.raises(HostsError) as raised:
        hosts.choose(60.0)
    assert str(raised.value) == (
        "the number of healthy hosts must reach one of (2, 3) within wait_s=60, got 1 of 3 hosts "
        "(h0 is healthy; h1 is sick: broken; h7 is lost: no word for "
        "10 s); write hosts=(1, 2) to go on with fewer, or a larger wait_s"
    )


def test_nobody_comes():
    with pytest.raises(HostsError, match=r"got 0 of 3 hosts \(none has joined\); write a larger"):
        gathering().choose(60.0)


def test_the_wait_begins_when_there_are_too_few():
    hosts = gathering(healthy=2, previous=(0, 1))
    assert hosts.choose(500.0) == (0, 1)
    assert hosts.state == "restarting"
    hosts.pool.lose(0, "gone")
    assert hosts.choose(559.9) is None
    hosts.resize(0)
    assert hosts.choose(700.0) is None  # a suspended job waits for the user
    hosts.resize(None)
    assert hosts.choose(759.9) is None
    with pytest.raises(HostsError):
        hosts.choose(760.0)

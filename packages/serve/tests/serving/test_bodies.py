# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The bound of all bodies, and who is refused."""

import hypothesis
import pytest
from hypothesis import strategies as st

from dovetail_serve import QueueFull
from dovetail_serve.serving.bodies import LARGEST_BODIES, Bodies


@hypothesis.given(sizes=st.lists(st.integers(0, 40), max_size=60), max_body=st.integers(1, 30))
def test_bodies_are_held_up_to_the_bound(sizes, max_body):
    bodies, held = Bodies(max_body), 0
    for size in sizes:
        if held + size > LARGEST_BODIES * max_body:
            with pytest.raises(QueueFull):
                bodies.hold(size)
        else:
            bodies.check(size)
            bodies.hold(size)
            held += size
        assert bodies.held == held
    bodies.release(held)
    assert bodies.held == 0


def test_the_refusal_says_what_is_held_and_when_to_come_back():
    bodies = Bodies(10)
    bodies.hold(155)
    with pytest.raises(QueueFull) as error:
        bodies.check(6)
    for part in ("at most 160 bytes", "got 155 and 6 more", "try again later", "raise max_body"):
        assert part in str(error.value)
    assert error.value.retry_after_s == 1.0


def test_a_block_gives_back_what_it_held():
    bodies = Bodies(10)
    with bodies.holding(150):
        assert bodies.held == 150
    assert bodies.held == 0
    block = bodies.holding(160)
    block.__enter__()
    error = ZeroDivisionError()
    assert not block.__exit__(type(error), error, None)
    assert bodies.held == 0
    with pytest.raises(QueueFull), bodies.holding(161):
        pass
    assert bodies.held == 0

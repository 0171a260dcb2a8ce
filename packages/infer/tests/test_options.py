# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Options of the engine that no other test sets."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from engines import decoder, engine, greedy, prompts

from dovetail_infer import Sampling

GREEDY = Sampling(max_tokens=12, temperature=0)
FEW = {"kv_bytes": 24 * 4 * 512}  # 24 pages of float32


@pytest.mark.thorough
@pytest.mark.parameter("kv_dtype", "kv_bytes")
def test_a_cache_of_half_the_width_has_twice_the_pages() -> None:
    with engine(kv_dtype=jnp.float16, **FEW) as half, engine(**FEW) as whole:
        (a,), (b,) = half.stats().pages, whole.stats().pages
        assert 2 * b.free <= a.free <= 2 * b.free + 1
        found = half.generate(prompts(6), GREEDY)
        # The margins of the greedy tokens of this model exceed the rounding of float16.
        assert [c.tokens.tolist() for c in found] == [greedy(decoder(), x, 12) for x in prompts(6)]


@pytest.mark.thorough
@pytest.mark.parameter("max_logprobs")
def test_as_many_likeliest_tokens_as_the_engine_returns() -> None:
    with engine(max_logprobs=2) as running:
        (found,) = running.generate([[1, 2]], Sampling(max_tokens=3, temperature=0, logprobs=2))
        assert found.top is not None
        assert found.top.tokens.shape == (3, 2)
        assert found.top.tokens[:, 0].tolist() == found.tokens.tolist()
        for option in ({"logprobs": 3}, {"prompt_logprobs": 3}):
            with pytest.raises(
                ValueError, match=r"at most 2 for this engine, got .*=3\. Use 2, or"
            ):
                running.generate([[1, 2]], Sampling(**option))


@pytest.mark.parameter("events")
def test_events_are_plain_values_of_each_request() -> None:
    events: list[dict[str, Any]] = []
    with engine(events=events.append) as running:
        running.generate(prompts(3), GREEDY)
    assert events
    plain = (int, float, str, bool, list, tuple, dict, type(None))
    assert all(isinstance(value, plain) for event in events for value in event.values())

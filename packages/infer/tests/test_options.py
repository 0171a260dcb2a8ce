# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Options of the engine that no other test sets, and one manner of its methods."""

from __future__ import annotations

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from engines import decoder, engine, greedy, prompts

from dovetail_infer import Sampling, fold_seed

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


@pytest.mark.parameter("priority")
def test_priorities_order_the_queue_and_keep_the_tokens() -> None:
    events: list[dict[str, Any]] = []
    options = [dataclasses.replace(GREEDY, priority=p) for p in (1, 0, -2, 0)]
    ids = prompts(4)
    with engine(max_rows=1, events=events.append) as running:
        running.pause()
        with ThreadPoolExecutor(1) as pool:
            given = pool.submit(running.generate, ids, options)
            while running.stats().waiting < 4:
                time.sleep(0.001)
            running.resume()
            found = [c.tokens.tolist() for c in given.result(60)]
    assert found == [greedy(decoder(), x, 12) for x in ids]
    rows = [event["rows"] for event in events if event["event"] == "step"]
    begun = [row[0] for step in rows for row in step if row[5]]
    assert begun == [2, 1, 3, 0]


@pytest.mark.thorough("it compiles every program of an engine")
@pytest.mark.parameter("prefill_tokens")
def test_no_step_beside_decoding_rows_reads_more_of_prompts_and_none_compiles_late() -> None:
    events: list[dict[str, Any]] = []
    with engine(prefill_tokens=5, events=events.append, prefix_cache=False) as running:
        assert 5 + 4 in {program.bucket.tokens for program in running.warmup()}
        running.generate(prompts(8), GREEDY)
        assert running.stats().late_compiles == 0
    sizes = []
    for event in events:
        counts = [row[3] for row in event.get("rows", ()) if row[3] > 1 or row[5]]
        if len(event.get("rows", ())) > len(counts) > 0:
            sizes.append(sum(counts))
    assert max(sizes) == 5


@pytest.mark.thorough
def test_sample_takes_a_sampling_and_a_model_is_the_next_version() -> None:
    ids = prompts(2, seed=21, longest=9)
    sampling = Sampling(max_tokens=5, temperature=0.7, top_k=9, logprobs=2, seed=4)
    with engine() as running:
        found = running.sample(ids, sampling, n=2)
        replaced = running.sample(ids, dataclasses.replace(sampling, seed=9), n=2, seed=4)
        for i, j in np.ndindex(2, 2):
            option = dataclasses.replace(sampling, seed=fold_seed(4, prompt=i, completion=j))
            (alone,) = running.generate([ids[i]], option)
            assert alone.tokens.tolist() == found[i][j].tokens.tolist()
            assert found[i][j].top is not None
            assert replaced[i][j].tokens.tolist() == found[i][j].tokens.tolist()
        (drawn,) = running.sample(ids[:1], n=2, max_tokens=3)  # without any seed
        assert drawn[0].seed != drawn[1].seed
        for version in (1, 2):
            running.update_weights(decoder(seed=version))
            (after,) = running.generate(ids[:1], GREEDY)
            assert after.version == version
            assert after.tokens.tolist() == greedy(decoder(seed=version), ids[0], 12)


@pytest.mark.thorough
def test_a_warm_up_that_does_not_wait_ends_with_its_engine() -> None:
    with engine() as running:
        few = running.warmup(wait=False)
        assert running.generate([[1, 2]], GREEDY)[0].tokens.tolist() == greedy(
            decoder(), [1, 2], 12
        )
        (rest,) = [t for t in threading.enumerate() if t.name == "dovetail-compile"]
        assert len(few) < len(running._executor.programs())
    assert not rest.is_alive()

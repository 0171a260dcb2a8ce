# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""An idle batcher with several clients waits a few passes of the event loop for more requests."""

import asyncio
import math

import numpy as np
import pytest

from dovetail_serve import Batching, load
from dovetail_serve.serving import batcher as batcher_module
from dovetail_serve.serving.batcher import EMPTY_PASSES, Batcher

X = np.random.default_rng(3).normal(size=(8, 6)).astype("float32")


@pytest.fixture
def warm(exported, monkeypatch):
    """`warm(main, **options)` returns the result of `main(batcher)`. Time never ends a wait."""
    monkeypatch.setattr(batcher_module, "INLINE_S", math.inf)
    monkeypatch.setattr(batcher_module, "GATHER_S", 1e6)
    path, expected = exported[1]

    def run(main, **options):
        async def limited():
            batcher = Batcher(load(path), Batching(**options))
            await batcher.warm_up()
            async with asyncio.timeout(60.0):
                result = await main(batcher)
            await batcher.drain(60.0)
            return result

        return asyncio.run(limited())

    run.expected = expected
    return run


async def after(passes, batcher, i, **options):
    """Sends row `i` some passes later. Returns its outputs and the rows of its batch."""
    for _ in range(passes):
        await asyncio.sleep(0)
    outputs, timing = await batcher.infer({"x": X[i : i + 1]}, 1, **options)
    return outputs["y"], timing.batch_rows


async def passes_of(*requests):
    """Returns the passes of the event loop until all requests are answered."""
    tasks = [asyncio.ensure_future(request) for request in requests]
    count = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        count += 1
    for task in tasks:
        await task
    return count


async def alone(batcher):
    return await passes_of(after(0, batcher, 0))


async def together(batcher, **options):
    return await passes_of(after(0, batcher, 0), after(0, batcher, 1, **options))


def test_requests_of_successive_passes_share_a_batch(warm):
    # Two clients begin, the others come within the passes that an idle batcher waits.
    starts = (0, 0, 1, 2, 2 + EMPTY_PASSES - 1)

    async def main(batcher):
        return await asyncio.gather(*(after(n, batcher, i) for i, n in enumerate(starts)))

    for i, (y, rows) in enumerate(warm(main)):
        assert rows == len(starts)
        # float32 sums of at most 6 terms.
        np.testing.assert_allclose(y, warm.expected(X[i : i + 1]), rtol=1e-5, atol=1e-6)


def test_a_batch_starts_when_no_request_came_for_some_passes(warm):
    async def main(batcher):
        late = 3 * EMPTY_PASSES
        requests = [after(0, batcher, 0), after(0, batcher, 1), after(late, batcher, 2)]
        answers = await asyncio.gather(*requests)
        return [rows for _, rows in answers]

    assert warm(main) == [2, 2, 1]


@pytest.mark.thorough
def test_a_client_that_is_alone_never_waits(warm):
    async def main(batcher):
        first = await alone(batcher)
        crowd = await together(batcher)
        # The crowd has gone; the next batch still waits for it, and those after it do not.
        return first, crowd, await alone(batcher), await alone(batcher), await alone(batcher)

    first, crowd, after_it, *later = warm(main)
    assert first < EMPTY_PASSES
    assert crowd == after_it == first + EMPTY_PASSES
    assert later == [first, first]


@pytest.mark.thorough
def test_a_full_batch_starts_at_once(warm):
    async def main(batcher):
        return await alone(batcher), await together(batcher)

    first, full = warm(main, max_batch=2)
    assert full == first


@pytest.mark.parametrize("name", ["GATHER_S", "INLINE_S"])
def test_neither_the_time_nor_a_batch_on_the_thread_waits(warm, monkeypatch, name):
    monkeypatch.setattr(batcher_module, name, 0.0)

    async def main(batcher):
        requests = [after(n, batcher, i) for i, n in enumerate((0, 0, EMPTY_PASSES - 1))]
        return [rows for _, rows in await asyncio.gather(*requests)]

    assert warm(main)[:2] == [2, 2]


@pytest.mark.thorough
def test_requests_without_a_gap_wait_for_a_bounded_time(warm, monkeypatch):
    monkeypatch.setattr(batcher_module, "GATHER_S", 5e-4)
    count = 500  # a pass with a request takes more than 5 us

    async def main(batcher):
        requests = [after(max(0, i - 1), batcher, i % 8) for i in range(count)]
        return [rows for _, rows in await asyncio.gather(*requests)]

    assert 2 <= warm(main, max_batch=2 * count)[0] < count


def test_a_deadline_ends_the_wait(warm, monkeypatch):
    monkeypatch.setattr(batcher_module, "GATHER_S", 30.0)

    async def main(batcher):
        near, far = 20.0, 40.0
        times = [await together(batcher, deadline_s=far), await together(batcher, deadline_s=near)]
        return await alone(batcher), *times

    first, far, near = warm(main)
    assert (far, near) == (first + EMPTY_PASSES, first)


def test_a_cancelled_burst_leaves_nothing_behind(warm):
    async def main(batcher):
        tasks = [asyncio.ensure_future(after(0, batcher, i)) for i in range(3)]
        for _ in range(3):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _ in range(EMPTY_PASSES):
            await asyncio.sleep(0)
        return batcher.queued, await together(batcher), await together(batcher)

    queued, first, second = warm(main)
    assert queued == 0
    assert first == second

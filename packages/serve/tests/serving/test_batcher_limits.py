# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The batcher: deadlines, cancellation, a full queue, and the end."""

import asyncio
import math
import time

import jax
import numpy as np
import pytest

from dovetail_serve import (
    Batching,
    DeadlineExceeded,
    NotReady,
    QueueFull,
    RequestError,
    Tensor,
    export,
    load,
)
from dovetail_serve.serving import batcher as batcher_module
from dovetail_serve.serving.batcher import Batcher


@pytest.mark.capability("deadlines, priorities and cancellation")
async def test_cancelled_rows_do_not_run_and_the_batcher_goes_on(gated, passes):
    async with gated() as (batcher, gate):
        running, waiting, kept = gate.start(0), gate.start(1, 2), gate.start(3)
        assert await gate.begun.get() == 4
        late = [gate.start(i) for i in (4, 5, 6)]
        await passes()
        for task in (running, waiting, late[1]):
            task.cancel()
        await passes()
        assert batcher.queued == 2
        gate.open()
        gate.check((await kept)[0], 3)
        outputs, timing = await late[2]
        gate.check(outputs, 6)
        assert timing.batch_rows == 2
        results = await asyncio.gather(running, waiting, late[1], return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError] * 3


async def test_a_cancelled_divided_request_stops_between_batches(gated, passes):
    async with gated() as (_, gate):
        large = gate.start(0, 30)
        assert await gate.begun.get() == 8
        large.cancel()
        await passes()
        gate.open()
        outputs, _ = await gate.start(7)
        gate.check(outputs, 7)
        assert await gate.begun.get() == 1
        assert gate.begun.empty()


@pytest.mark.capability("deadlines, priorities and cancellation")
async def test_a_deadline_is_kept_while_the_model_is_busy(gated):
    async with gated() as (batcher, gate):
        running = gate.start(0, deadline_s=0.25)
        await gate.begun.get()
        waiting = gate.start(1, deadline_s=0.01)
        patient = gate.start(2, deadline_s=60.0)
        for task, limit in ((waiting, "10 ms"), (running, "250 ms")):
            with pytest.raises(DeadlineExceeded) as error:
                await task
            for text in ("before the deadline", f"got none within {limit}", "allow more time"):
                assert text in str(error.value)
        assert (batcher.queued, batcher.busy) == (1, True)
        gate.open()
        outputs, timing = await patient
        gate.check(outputs, 2)
        assert timing.batch_rows == 1


async def test_the_default_deadline_is_that_of_the_options(gated):
    async with gated(timeout_ms=15.0) as (_, gate):
        with pytest.raises(DeadlineExceeded, match="15 ms"):
            await gate.start(0)


@pytest.mark.parametrize("deadline_s", [0.0, -1.5, math.nan])
async def test_a_deadline_that_has_passed_is_refused_at_once(gated, deadline_s):
    async with gated() as (batcher, gate):
        with pytest.raises(DeadlineExceeded):
            await batcher.infer({"x": np.zeros((1, 4), "float32")}, 1, deadline_s=deadline_s)
        assert gate.begun.empty()


@pytest.mark.thorough
async def test_a_result_after_the_deadline_is_not_an_answer(tmp_path, monkeypatch):
    """On the event loop no timer can fire while the model runs."""
    monkeypatch.setattr(batcher_module, "INLINE_S", math.inf)

    def slow(params, *, x):  # 1,500 products of 192 x 192 matrices: 20 billion operations
        step = lambda _, y: jax.numpy.tanh(y @ params["w"])  # noqa: E731
        return {"y": jax.lax.fori_loop(0, 1500, step, params["w"])[:1] + x}

    w = np.random.default_rng(0).normal(size=(192, 192)).astype("float32")
    export(
        slow,
        {"w": w},
        inputs={"x": Tensor((1, 192), "float32")},
        example={"x": w[:1]},
        platforms=("cpu",),
        batch_sizes=(),
    ).save(tmp_path / "1")

    batcher = Batcher(load(tmp_path / "1", verify="none"), Batching())
    await batcher.warm_up()
    begun = time.perf_counter()
    with pytest.raises(DeadlineExceeded):
        await batcher.infer({"x": w[:1]}, 1, deadline_s=batcher.costs[1] / 20)
    assert time.perf_counter() - begun > batcher.costs[1] / 20
    await batcher.drain(60.0)


@pytest.mark.capability("deadlines, priorities and cancellation")
async def test_a_full_queue_refuses_and_the_level_0_is_first(gated, passes):
    async with gated(queue=2, priorities=2, max_batch=1) as (_, gate):
        done = []
        held = gate.start(0)
        await gate.begun.get()
        low, high = gate.start(1, priority=1), gate.start(2, priority=0)
        for name, task in (("low", low), ("high", high)):
            task.add_done_callback(lambda _, name=name: done.append(name))
        await passes()
        with pytest.raises(QueueFull) as error:
            await gate.start(3)
        assert 0 < error.value.retry_after_s < math.inf
        with pytest.raises(RequestError, match="priority=2"):
            await gate.start(3, priority=2)
        with pytest.raises(RequestError, match="priority=2"):
            await gate.start(3, rows=0, priority=2)
        with pytest.raises(DeadlineExceeded):
            await gate.start(3, rows=0, deadline_s=0.0)
        gate.open()
        await asyncio.gather(held, low, high)
        await passes()
        assert done == ["high", "low"]


async def test_drain_answers_all_and_refuses_new_ones(gated, passes):
    async with gated() as (batcher, gate):
        tasks = [gate.start(0)]
        await gate.begun.get()
        tasks += [gate.start(i) for i in range(1, 20)]
        await passes()
        drained = asyncio.ensure_future(batcher.drain(60.0))
        await passes()
        with pytest.raises(NotReady) as error:
            await gate.start(30)
        for text in ("must be ready", "shutting down", "try again later"):
            assert text in str(error.value)
        assert not drained.done()
        gate.open()
        await drained
        for i, (outputs, _) in enumerate(await asyncio.gather(*tasks)):
            gate.check(outputs, i)


async def test_what_is_left_after_the_grace_is_refused(gated, passes):
    async with gated() as (batcher, gate):
        tasks = [gate.start(0)]
        await gate.begun.get()
        tasks.append(gate.start(1))
        await passes()
        await batcher.drain(0.01)
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, NotReady)
            for text in ("until the answer", "its version had to stop", "send it again"):
                assert text in str(error)


async def test_a_drain_without_a_limit_takes_that_of_another_one(gated, passes):
    async with gated() as (batcher, gate):
        tasks = [gate.start(0), gate.start(1)]
        await gate.begun.get()
        drained = asyncio.ensure_future(batcher.drain(None))
        await passes()
        assert not drained.done()
        await batcher.drain(0.0)
        await drained
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [NotReady] * 2


async def test_a_cancelled_drain_leaves_no_caller_waiting(gated, passes):
    async with gated() as (batcher, gate):
        tasks = [gate.start(0)]
        await gate.begun.get()
        tasks.append(gate.start(1))
        await passes()
        drained = asyncio.ensure_future(batcher.drain(60.0))
        await passes()
        drained.cancel()
        errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [NotReady] * 2
        assert drained.cancelled()


async def test_a_batcher_that_is_not_warm_refuses(exported):
    batcher = Batcher(load(exported[1][0]), Batching())
    with pytest.raises(NotReady, match="not warm yet"):
        await batcher.infer({"x": np.zeros((1, 6), "float32")}, 1)
    await batcher.drain(1.0)

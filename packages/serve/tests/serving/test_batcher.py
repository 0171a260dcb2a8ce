# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The batcher: requests of many tasks in one event loop, each answered once with its own result."""

import asyncio
import math
import time
import weakref

import numpy as np
import pytest

from dovetail_serve import (
    Batching,
    ExecutionError,
    load,
)
from dovetail_serve.serving import batcher as batcher_module
from dovetail_serve.serving.batcher import Batcher


@pytest.mark.parametrize("inline_s", [0.0, math.inf], ids=["thread", "loop"])
@pytest.mark.parametrize("options", [{}, {"max_batch": 3, "padding": "next"}, {"max_batch": 1}])
@pytest.mark.capability("batching of requests")
async def test_200_tasks_get_their_own_results(exported, monkeypatch, inline_s, options):
    monkeypatch.setattr(batcher_module, "INLINE_S", inline_s)
    path, expected = exported[1]
    generator = np.random.default_rng(5)
    inputs = [
        generator.normal(size=(n, 6)).astype("float32") for n in generator.integers(0, 20, 200)
    ]
    kept = [x.copy() for x in inputs]

    batcher = Batcher(load(path), Batching(**options))
    await batcher.warm_up()
    answers = await asyncio.gather(*(batcher.infer({"x": x}, len(x)) for x in inputs))
    await batcher.drain(60.0)
    for (outputs, timing), x, before in zip(answers, inputs, kept, strict=True):
        # float32 sums of at most 6 terms.
        np.testing.assert_allclose(outputs["y"], expected(before), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(x, before)
        assert timing.rows == len(x)
        assert timing.batch_rows <= options.get("max_batch", 8)
        assert timing.batch_rows <= timing.padded_rows


async def test_requests_of_one_pass_share_a_batch(exported):
    path, _ = exported[1]

    batcher = Batcher(load(path), Batching())
    await batcher.warm_up()
    x = np.zeros((1, 6), "float32")
    answers = await asyncio.gather(*(batcher.infer({"x": x}, 1) for _ in range(8)))
    await batcher.drain(60.0)
    assert [timing.batch_rows for _, timing in answers] == [8] * 8


@pytest.mark.thorough
async def test_an_idle_model_runs_at_once_and_a_busy_one_gathers(gated, passes):
    async with gated() as (batcher, gate):
        first = gate.start(0)
        assert await gate.begun.get() == 1
        later = [gate.start(i, rows) for i, rows in ((1, 2), (3, 1), (4, 3))]
        await passes()
        assert (batcher.queued, batcher.busy) == (3, True)
        gate.open()
        for task, i, rows in zip([first, *later], (0, 1, 3, 4), (1, 2, 1, 3), strict=True):
            outputs, timing = await task
            gate.check(outputs, i, rows)
            assert (timing.batch_rows, timing.padded_rows) == ((1, 1) if task is first else (6, 8))
        assert (batcher.queued, batcher.busy) == (0, False)


async def test_stages_sum_to_the_time_from_arrival_to_answer(gated, passes):
    async with gated() as (_, gate):
        held_sent = time.perf_counter()
        held = gate.start(0)
        await gate.begun.get()
        divided_sent = time.perf_counter()
        divided = gate.start(1, 19)
        await passes()
        both_arrived = time.perf_counter()
        await asyncio.sleep(0.01)  # a wait to be seen in the stages
        opened = time.perf_counter()
        gate.open()
        for task, sent in ((held, held_sent), (divided, divided_sent)):
            _, timing = await task
            assert opened - both_arrived <= timing.total_s <= time.perf_counter() - sent
            stages = (timing.queue_s, timing.pad_s, timing.compute_s, timing.split_s)
            assert all(stage >= 0 for stage in stages)
            assert math.fsum(stages) == pytest.approx(timing.total_s, rel=1e-12)
        # The gate is part of the preparation of the first, and the second waited for it.
        assert (await held)[1].pad_s >= opened - both_arrived
        assert (await divided)[1].queue_s >= opened - both_arrived


@pytest.mark.thorough
@pytest.mark.parametrize("inline_s", [0.0, math.inf], ids=["thread", "loop"])
async def test_a_failure_is_the_answer_of_its_whole_batch_alone(
    exported, monkeypatch, caplog, inline_s
):
    monkeypatch.setattr(batcher_module, "INLINE_S", inline_s)
    path, expected = exported[1]
    # The second request is divided. The batch of its last three rows must not run.
    good, wrong = np.ones((2, 6), "float32"), np.ones((9, 7), "float32")

    batcher = Batcher(load(path), Batching())
    await batcher.warm_up()
    errors = await asyncio.gather(
        batcher.infer({"x": good}, 2), batcher.infer({"x": wrong}, 9), return_exceptions=True
    )
    outputs, _ = await batcher.infer({"x": good}, 2)
    await batcher.drain(60.0)
    assert [type(error) for error in errors] == [ExecutionError] * 2
    assert errors[0] is not errors[1]
    for text in ("must run on valid inputs", "got ValueError", "try again"):
        assert text in str(errors[0])
    assert isinstance(errors[0].__cause__, ValueError)
    assert [record.getMessage() for record in caplog.records] == ["a batch of 2 requests failed"]
    # float32 sums of at most 6 terms.
    np.testing.assert_allclose(outputs["y"], expected(good), rtol=1e-5, atol=1e-6)


async def test_an_exit_in_a_host_function_does_not_hang_callers(gated):
    async with gated() as (batcher, gate):
        gate.open()
        x = np.full((1, 4), np.inf, "float32")
        with pytest.raises(ExecutionError, match="SystemExit"):
            await batcher.infer({"x": x}, 1)
        gate.check((await gate.start(3))[0], 3)


async def test_only_requests_with_rows_that_are_not_finite_fail(exported):
    path, expected = exported[1]
    good, bad = np.ones((2, 6), "float32"), np.full((9, 6), np.nan, "float32")

    batches = []

    batcher = Batcher(
        load(path), Batching(), finite=True, on_batch=lambda *batch: batches.append(batch[:2])
    )
    await batcher.warm_up()
    results = await asyncio.gather(
        batcher.infer({"x": good}, 2), batcher.infer({"x": bad}, 9), return_exceptions=True
    )
    await batcher.drain(60.0)
    (outputs, _), error = results
    # float32 sums of at most 6 terms.
    np.testing.assert_allclose(outputs["y"], expected(good), rtol=1e-5, atol=1e-6)
    assert isinstance(error, ExecutionError)
    assert "must be finite" in str(error)
    # The last three rows of the request that has failed do not run.
    assert batches == [(8, 8)]


async def test_each_batch_is_told_with_its_padding(exported):
    batches = []

    batcher = Batcher(
        load(exported[1][0]),
        Batching(padding="next"),
        on_batch=lambda *batch: batches.append(batch),
    )
    await batcher.warm_up()
    await asyncio.gather(*(batcher.infer({"x": np.ones((n, 6), "float32")}, n) for n in (3, 5, 4)))
    _, timing = await batcher.infer({"x": np.ones((1, 6), "float32")}, 1)
    assert batches[-1][2] == timing.compute_s
    await batcher.drain(60.0)
    assert [batch[:2] for batch in batches] == [(8, 8), (4, 8), (1, 1)]


@pytest.mark.thorough
async def test_the_delay_ends_with_a_full_batch_or_with_time(exported, passes):
    x = np.zeros((1, 6), "float32")
    batcher = Batcher(load(exported[1][0]), Batching(max_batch=3, max_delay_ms=3.6e6))
    await batcher.warm_up()
    first = asyncio.ensure_future(batcher.infer({"x": x}, 1))
    await passes()
    assert (batcher.queued, batcher.busy) == (1, False)
    second, third = batcher.infer({"x": x}, 1), batcher.infer({"x": x}, 1)
    (_, timing), *_ = await asyncio.gather(first, second, third)
    assert timing.batch_rows == 3
    alone = asyncio.ensure_future(batcher.infer({"x": x}, 1))
    await passes()
    await batcher.drain(60.0)  # ends the delay
    assert (await alone)[1].batch_rows == 1

    batcher = Batcher(load(exported[1][0]), Batching(max_delay_ms=20.0))
    await batcher.warm_up()
    _, timing = await batcher.infer({"x": x}, 1)
    await batcher.drain(60.0)
    assert timing.queue_s >= 0.02


async def test_no_rows_are_answered_without_running(gated):
    async with gated() as (batcher, gate):
        outputs, timing = await batcher.infer({"x": np.zeros((0, 4), "float32")}, 0)
        assert gate.begun.empty()
    assert (outputs["y"].shape, outputs["y"].dtype) == ((0, 3), np.float32)
    assert (timing.rows, timing.batch_rows, timing.padded_rows, timing.queue_s) == (0, 0, 0, 0.0)


@pytest.mark.thorough
async def test_a_drained_batcher_releases_its_model(exported, freed):
    model = load(exported[1][0])
    batcher = Batcher(model, Batching(timeout_ms=3.6e6))
    await batcher.warm_up()
    await batcher.infer({"x": np.zeros((1, 6), "float32")}, 1)
    await batcher.drain(60.0)
    reference = weakref.ref(model)
    del model, batcher
    await freed(reference)

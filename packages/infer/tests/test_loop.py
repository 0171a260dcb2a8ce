# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The loop: queues, ends from outside, failures, new weights, and sleep."""

from __future__ import annotations

import dataclasses
import itertools
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engines import Failing, decoder, engine, greedy, prompts
from flax import nnx

from dovetail_infer import Sampling
from dovetail_infer.run import submission
from dovetail_infer.run.loop import Loop
from dovetail_infer.testing import TinyDecoder

GREEDY = Sampling(max_tokens=12, temperature=0)
LONG = Sampling(max_tokens=60, temperature=0)


class Held:
    """Holds an engine in its tenth step until a call has come to its loop, or has returned.

    Otherwise the engine may end all requests before a busy machine lets the test's thread go on.
    """

    def __init__(self, running):
        self._loop, self._executor = running._submission.loop, running._steps._executor
        self._count, self.returned = itertools.count(1), False
        running._steps._executor = self

    def __getattr__(self, name):
        return getattr(self._executor, name)

    def dispatch(self, batch, **options):
        if next(self._count) == 10:
            while not (self._loop._commands or self._loop._closed or self.returned):
                time.sleep(0.001)
        return self._executor.dispatch(batch, **options)


def pages_in_use(running):
    return sum(page.used for page in running.stats().pages)


@pytest.mark.thorough
class TestEndsFromOutside:
    """Aborts, deadlines and signals."""

    def test_leaving_a_stream_aborts_its_request(self):
        with engine() as running:
            held = Held(running)
            with running.stream([1, 2], LONG) as stream:
                assert len(next(iter(stream)).tokens) >= 1
            held.returned = True
            (other,) = running.generate([[3]], GREEDY)
            assert other.tokens.tolist() == greedy(decoder(), [3], 12)
            assert running.stats().finished == {"abort": 1, "length": 1}
            assert pages_in_use(running) == 0

    def test_async_streams_run_together(self):
        import asyncio

        async def one(running, i):
            async with running.stream([i], GREEDY) as stream:
                found = [token async for piece in stream for token in piece.tokens.tolist()]
            assert stream.completion.tokens.tolist() == found
            return found

        async def cancelled(running):
            async with running.stream([9], LONG) as stream:
                async for _ in stream:
                    raise asyncio.CancelledError

        async def every(running):
            tasks = [one(running, i) for i in range(6)]
            return await asyncio.gather(*tasks, cancelled(running), return_exceptions=True)

        with engine() as running:
            *found, error = asyncio.run(every(running))
            assert isinstance(error, asyncio.CancelledError)
            assert found == [greedy(decoder(), [i], 12) for i in range(6)]
            assert pages_in_use(running) == 0

    @pytest.mark.parameter("deadline_s")
    def test_a_deadline_ends_a_request_that_waits(self):
        with engine() as running:
            running.pause()
            found = []
            option = dataclasses.replace(GREEDY, deadline_s=0.05)
            thread = threading.Thread(target=lambda: found.extend(running.generate([[1]], option)))
            thread.start()
            thread.join(30)
            assert found[0].finish_reason == "deadline"
            assert len(found[0].tokens) == 0
            running.resume()
            assert len(running.generate([[1]], GREEDY)[0].tokens) == 12

    def test_close_aborts_what_runs(self):
        running = engine()
        Held(running)
        with running.stream([1, 2], LONG) as stream:
            next(iter(stream))
            running.close()
            list(stream)
            assert stream.completion.finish_reason == "abort"

    @pytest.mark.parametrize("streams", [False, True])
    def test_an_interruption_while_a_request_is_queued_aborts_it(self, streams, monkeypatch):
        def interrupted(condition):
            monkeypatch.undo()
            raise KeyboardInterrupt

        with engine() as running:
            running.pause()
            monkeypatch.setattr(threading.Condition, "notify_all", interrupted)
            with pytest.raises(KeyboardInterrupt):
                running.stream([1], LONG).__enter__() if streams else running.generate([[1]], LONG)
            running.resume()
            assert len(running.generate([[2]], GREEDY)[0].tokens) == 12
            assert running.stats().finished == {"abort": 1, "length": 1}
            assert pages_in_use(running) == 0

    def test_an_interruption_while_a_request_is_made_aborts_no_later_one(self, monkeypatch):
        aborted = []

        def interrupted(**fields):
            raise KeyboardInterrupt

        with engine() as running, monkeypatch.context() as patch:
            loop = running._submission.loop
            patch.setattr(submission, "Scheduled", interrupted)
            # The command may come to the engine's thread after the next request.
            patch.setattr(Loop, "abort", lambda self, request_ids: aborted.extend(request_ids))
            with pytest.raises(KeyboardInterrupt):
                running.generate([[1]], LONG)
            assert aborted
            assert loop._next_id not in aborted

    def test_ctrl_c_ends_cleanly(self):
        program = Path(__file__).parent / "programs" / "interrupted.py"
        line = [sys.executable, str(program)]
        pipe = subprocess.PIPE
        with subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True) as child:
            assert child.stdout.readline() == "running\n"
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=300)
        assert (child.returncode, out) == (0, "interrupted, 0 pages, 1 more\n"), err[-2000:]


class TestFailures:
    """Failed steps, and models that give no numbers."""

    @pytest.mark.capability("a failed step that ends its own requests alone")
    @pytest.mark.parametrize("at", ["read", "dispatch"])
    @pytest.mark.parametrize("overlap", [True, False])
    @pytest.mark.parameter("overlap")
    def test_a_failed_step_ends_its_requests_alone(self, at, overlap, caplog):
        ids = prompts(24, seed=4)
        with engine(overlap=overlap, max_rows=4) as running:
            count = iter(range(10**6))
            executor = running._steps._executor
            running._steps._executor = Failing(
                executor, lambda batch: next(count) in (5, 20, 41), at=at
            )
            found = running.generate(ids, GREEDY)
            failed = [c for c in found if c.finish_reason == "error"]
            assert 3 <= len(failed) <= 12
            assert all("injected" in c.error for c in failed)
            for prompt, completion in zip(ids, found, strict=True):
                want = greedy(decoder(), prompt, 12)
                assert completion.tokens.tolist() == want[: len(completion.tokens)]
                assert completion.finish_reason == "error" or len(completion.tokens) == 12
            stats = running.stats()
            assert stats.failed_steps == 3
            assert pages_in_use(running) == 0
        assert caplog.text.count("requests failed") == 3

    def test_nan_ends_its_request_alone(self):
        model = TinyDecoder(vocab_size=61, rngs=nnx.Rngs(0))
        table = model.embedding[...]
        model.embedding[...] = table.at[13].set(jnp.nan)
        with engine(model) as running:
            bad, good = running.generate([[1, 13], [1, 2]], GREEDY)
            assert bad.finish_reason == "error"
            assert "NaN" in bad.error
            assert good.tokens.tolist() == greedy(model, [1, 2], 12)

    @pytest.mark.thorough
    def test_nan_of_a_former_request_is_not_read_again(self):
        """Pages are given away with what they hold."""
        model = TinyDecoder(vocab_size=61, rngs=nnx.Rngs(0))
        model.embedding[...] = model.embedding[...].at[13].set(jnp.nan)
        with engine(model, kv_bytes=16 * 1024, prefix_cache=False) as running:
            running.generate([[13] * 40], GREEDY)
            (good,) = running.generate([[1, 2]], GREEDY)
            assert good.tokens.tolist() == greedy(model, [1, 2], 12)


@pytest.mark.thorough("engines that take new weights")
class TestWeights:
    """New weights between steps."""

    @pytest.mark.capability("new weights between steps, without stale prefixes")
    def test_new_weights_forget_cached_prefixes(self):
        old, new = decoder(), decoder(seed=1)
        ids = prompts(4)
        with engine(TinyDecoder(vocab_size=61, rngs=nnx.Rngs(0))) as running:
            before = running.generate(ids, GREEDY)
            running.update_weights(nnx.state(new, nnx.Param), version=7)
            after = running.generate(ids, GREEDY)
            assert running.stats().compiled > 0
            assert [c.version for c in before + after] == [0] * 4 + [7] * 4
            assert after[0].cached_tokens == 0  # the others may share pages with it
        assert [c.tokens.tolist() for c in before] == [greedy(old, x, 12) for x in ids]
        assert [c.tokens.tolist() for c in after] == [greedy(new, x, 12) for x in ids]

    def test_running_requests_go_on_with_the_new_weights(self):
        old, new = decoder(), decoder(seed=1)
        with engine(TinyDecoder(vocab_size=61, rngs=nnx.Rngs(0))) as running:
            option = dataclasses.replace(LONG, max_tokens=40)
            held = Held(running)
            with running.stream([1, 2, 3], option) as stream:
                iterator = iter(stream)
                next(iterator)
                running.update_weights(nnx.state(new, nnx.Param), version=1)
                held.returned = True
                list(iterator)
            found = stream.completion
            first = int((found.versions == 0).sum())
            assert 0 < first < 40
            assert found.versions.tolist() == [0] * first + [1] * (40 - first)
            ids = found.tokens.tolist()
            assert ids[:first] == greedy(old, [1, 2, 3], first)
            assert ids[first:] == greedy(new, [1, 2, 3, *ids[:first]], 40 - first)

    def test_the_given_arrays_may_be_donated_afterwards(self):
        new = decoder(seed=1)
        state = jax.tree.map(jnp.copy, nnx.state(new, nnx.Param))
        with engine(TinyDecoder(vocab_size=61, rngs=nnx.Rngs(0))) as running:
            running.update_weights(state, version=1)
            jax.tree.map(lambda x: x.delete(), state)
            (found,) = running.generate([[1, 2]], GREEDY)
            assert found.tokens.tolist() == greedy(new, [1, 2], 12)

    @pytest.mark.parametrize(
        "params, version, words",
        [
            ({"output": np.zeros((32, 61), np.float32)}, 0, ("version", "above", "0")),
            ({"outptu": np.zeros((32, 61), np.float32)}, 1, ("outptu", "output")),
            ({"output": np.zeros((61, 32), np.float32)}, 1, ("output", "(61, 32)", "(32, 61)")),
        ],
    )
    def test_wrong_weights_change_nothing(self, params, version, words):
        with engine() as running:
            with pytest.raises(ValueError, match=r"version|output") as raised:
                running.update_weights(params, version=version)
            assert all(word in str(raised.value) for word in words)
            (found,) = running.generate([[1, 2]], GREEDY)
            assert (found.version, found.tokens.tolist()) == (0, greedy(decoder(), [1, 2], 12))

    def test_sleep_keeps_requests(self):
        with engine() as running, running.stream([1, 2], LONG) as stream:
            iterator = iter(stream)
            next(iterator)
            running.sleep()
            running.sleep()
            assert pages_in_use(running) == 0
            running.resume()
            list(iterator)
            assert stream.completion.tokens.tolist() == greedy(decoder(), [1, 2], 60)


@pytest.mark.thorough("it compiles all programs of an engine")
@pytest.mark.capability("no compilation after warm-up")
@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_requests_compile_nothing_after_warmup(count):
    rng = np.random.default_rng(0)
    ids = prompts(count, seed=1)
    options = [
        Sampling(
            max_tokens=int(rng.integers(1, 12)),
            temperature=float(rng.choice([0, 0.7])),
            top_p=float(rng.choice([1, 0.5])),
            logprobs=rng.choice([None, 3]),
            prompt_logprobs=rng.choice([None, 2]),
            presence_penalty=float(rng.choice([0, 0.5])),
        )
        for _ in ids
    ]
    with engine() as running:
        assert all(program.compiled for program in running.warmup())
        events = []

        def listen(event, *_, **__):
            events.append(event)

        jax.monitoring.register_event_duration_secs_listener(listen)
        running.generate(ids, options)
        jax.monitoring.unregister_event_duration_listener(listen)
        assert [event for event in events if "backend_compile" in event] == []
        assert running.stats().late_compiles == 0


@pytest.mark.thorough("sixty random requests")
@pytest.mark.capability("requests that end anywhere, and pages that come back")
@pytest.mark.parametrize("seed", range(3))
def test_whatever_happens_to_others_a_request_gets_its_own_result(seed, caplog):
    """Aborts, deadlines, failed steps and preemptions at random."""
    rng = np.random.default_rng(seed)
    ids = prompts(60, seed=seed)
    with engine(max_rows=4, kv_bytes=24 * 1024, max_queue=8) as running:
        executor = running._steps._executor
        running._steps._executor = Failing(executor, lambda batch: rng.random() < 0.02)
        found = [None] * len(ids)

        def run(i):
            leave = np.random.default_rng([seed, i]).random() < 0.3
            with running.stream(ids[i], GREEDY) as stream:
                for piece in stream:
                    if leave and len(piece.tokens):
                        return
            found[i] = stream.completion

        parts = [range(k, 60, 6) for k in range(6)]
        threads = [threading.Thread(target=lambda i=i: list(map(run, i))) for i in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        whole = 0
        for prompt, completion in zip(ids, found, strict=True):
            if completion is not None:
                want = greedy(decoder(), prompt, 12)
                assert completion.tokens.tolist() == want[: len(completion.tokens)]
                whole += completion.finish_reason == "length"
        assert whole > 15
        running.pause()  # waits until aborts have been seen
        stats = running.stats()
        assert stats.waiting == stats.running == pages_in_use(running) == 0

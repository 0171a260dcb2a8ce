# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Streams that are read by several readers, in the wrong way, or by nobody."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import defaultdict
from collections.abc import Iterator

import pytest
from engines import decoder, engine, greedy

from dovetail_infer import Completion, Engine, Sampling

GREEDY = Sampling(max_tokens=12, temperature=0)
LONG = Sampling(max_tokens=60, temperature=0)


@pytest.fixture(scope="module")
def running() -> Iterator[Engine]:
    with engine() as shared:
        yield shared


@pytest.mark.thorough
def test_two_threads_divide_a_stream_and_both_end(running: Engine) -> None:
    pieces: list[int] = []
    with running.stream([1, 2], GREEDY) as stream:

        def read() -> None:
            pieces.extend(token for piece in stream for token in piece.tokens.tolist())

        threads = [threading.Thread(target=read, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
    assert sorted(pieces) == sorted(greedy(decoder(), [1, 2], 12))


@pytest.mark.thorough
def test_two_tasks_divide_a_stream_and_both_end(running: Engine) -> None:
    async def main() -> list[int]:
        async with running.stream([1, 2], GREEDY) as stream:

            async def read() -> list[int]:
                return [token async for piece in stream for token in piece.tokens.tolist()]

            first, second = await asyncio.wait_for(asyncio.gather(read(), read()), 60)
            return first + second

    assert sorted(asyncio.run(main())) == sorted(greedy(decoder(), [1, 2], 12))


def test_the_other_kind_of_loop_is_refused(running: Engine) -> None:
    async def read_async() -> None:
        wrong = pytest.raises(RuntimeError, match=r"as its block.*got `async for`.*Use `for`")
        with running.stream([1], GREEDY) as stream, wrong:
            await stream.__aiter__().__anext__()

    async def read() -> None:
        async with running.stream([1], GREEDY) as stream:
            with pytest.raises(RuntimeError, match=r"got `for` in the other.*Use `async for`"):
                next(iter(stream))

    asyncio.run(read_async())
    asyncio.run(read())


def test_a_stream_runs_once_and_a_second_block_does_no_harm(running: Engine) -> None:
    async def main() -> int:
        async with running.stream([1], GREEDY) as stream:
            with pytest.raises(RuntimeError, match=r"runs once.*second.*engine.stream again"):
                await stream.__aenter__()
            return sum([len(piece.tokens) async for piece in stream])

    assert asyncio.run(main()) == 12


def test_a_stream_outside_its_block_is_refused(running: Engine) -> None:
    stream = running.stream([1], GREEDY)
    with pytest.raises(RuntimeError, match=r"begins with its block.*outside.*Use `with"):
        next(iter(stream))
    with pytest.raises(RuntimeError, match=r"completion before.*Iterate"):
        _ = stream.completion


@pytest.mark.thorough
def test_a_stream_keeps_its_engine_alive() -> None:
    with engine().stream([1, 2], GREEDY) as stream:
        gc.collect()
        tokens = [token for piece in stream for token in piece.tokens.tolist()]
    assert tokens == greedy(decoder(), [1, 2], 12)


@pytest.mark.thorough("programs of six rows")
def test_streams_of_several_prompts_are_the_samples_with_their_index(running: Engine) -> None:
    ids = [list(range(20)), [7, 8, 9]]
    sampling = Sampling(max_tokens=9, seed=5)
    expected = [c.tokens.tolist() for row in running.sample(ids, sampling, n=3) for c in row]
    assert len({tuple(tokens) for tokens in expected}) == 6

    async def main() -> list[list[int]]:
        tokens, done = defaultdict[int, list[int]](list), list[tuple[int, list[int]]]()
        async with running.streams(ids, sampling, n=3) as streams:
            async for index, piece in streams:
                if isinstance(piece, Completion):
                    done.append((index, piece.tokens.tolist()))
                    assert tokens[index] == piece.tokens.tolist()
                else:
                    assert index not in dict(done)
                    tokens[index] += piece.tokens.tolist()
        return [tokens for _, tokens in sorted(done)]

    assert asyncio.run(main()) == expected
    with running.streams(ids, sampling, n=3) as streams:
        ends = [(i, piece) for i, piece in streams if isinstance(piece, Completion)]
    assert [c.tokens.tolist() for _, c in sorted(ends, key=lambda end: end[0])] == expected
    with running.streams([], sampling) as streams:
        assert list(streams) == []


def test_streams_share_the_pages_of_their_prompt() -> None:
    with engine() as running, running.streams([list(range(17))], GREEDY, n=4) as streams:
        cached = {i: p.cached_tokens for i, p in streams if isinstance(p, Completion)}
    assert cached == {0: 0, 1: 16, 2: 16, 3: 16}


def test_leaving_streams_aborts_all_of_them(running: Engine) -> None:
    before = running.stats().finished.get("abort", 0)
    running.pause()
    with running.streams([[1], [2]], LONG, n=2):
        pass
    running.resume()
    running.generate([[3]], GREEDY)
    assert running.stats().finished["abort"] == before + 4
    with pytest.raises(ValueError, match=r"n must be at least 1, got n=0"):
        running.streams([[1]], GREEDY, n=0)


@pytest.mark.costly("60 tokens, and whole passes over them")
def test_a_closed_event_loop_aborts_its_streams(running: Engine) -> None:
    before = running.stats().finished.get("abort", 0)
    running.pause()
    loop = asyncio.new_event_loop()
    stream = running.stream([1, 2], LONG)
    loop.run_until_complete(stream.__aenter__())
    loop.close()
    running.resume()
    (other,) = running.generate([[3]], LONG)  # long enough for the abort to be seen
    assert other.tokens.tolist() == greedy(decoder(), [3], 60)
    assert running.stats().finished["abort"] == before + 1

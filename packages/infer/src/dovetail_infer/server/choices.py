# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Choices`: all completions of one HTTP request, as they come."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from types import TracebackType

from dovetail_infer.completion import Completion, Tokens
from dovetail_infer.engine import Engine
from dovetail_infer.sampling import Sampling, fold_seed


class Choices:
    """Streams of an engine, read as one. Leaving the `async with` block early aborts all.

    Args:
        engine: The engine.
        prompts: Token ids of each prompt.
        options: Options of each prompt.
        n: Completions of each; choice j of prompt i has the index `i * n + j`.

    Raises:
        QueueFull: Not all of them have a place; none runs then.
        ValueError: The engine does not have an option.
        RuntimeError: The engine is closed.
    """

    def __init__(
        self,
        engine: Engine,
        prompts: Sequence[Sequence[int]],
        options: Sequence[Sampling],
        *,
        n: int,
    ) -> None:
        self._streams = [
            engine.stream(ids, _seeded(option, i, j))
            for i, (ids, option) in enumerate(zip(prompts, options, strict=True))
            for j in range(n)
        ]
        self._open = contextlib.AsyncExitStack()
        self._pieces: asyncio.Queue[tuple[int, Tokens | Completion] | BaseException] = (
            asyncio.Queue()
        )
        self._readers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Choices:
        async with self._open:
            for stream in self._streams:
                await self._open.enter_async_context(stream)
            self._open = self._open.pop_all()
        self._readers = [asyncio.create_task(self._read(i)) for i in range(len(self._streams))]
        return self

    async def __aiter__(self) -> AsyncIterator[tuple[int, Tokens | Completion]]:
        """Yields pieces with the index of their choice; the last of each is its `Completion`."""
        left = len(self._streams)
        while left:
            piece = await self._pieces.get()
            if isinstance(piece, BaseException):
                raise piece
            left -= isinstance(piece[1], Completion)
            yield piece

    async def completions(self) -> list[Completion]:
        """Returns all completions, by index."""
        done = {i: piece async for i, piece in self if isinstance(piece, Completion)}
        return [done[i] for i in range(len(self._streams))]

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for reader in self._readers:
            reader.cancel()
        await self._open.aclose()

    async def _read(self, index: int) -> None:
        try:
            async for piece in self._streams[index]:
                self._pieces.put_nowait((index, piece))
            self._pieces.put_nowait((index, self._streams[index].completion))
        except Exception as error:
            self._pieces.put_nowait(error)


def _seeded(sampling: Sampling, prompt: int, completion: int) -> Sampling:
    """Returns the options of a choice, as `Engine.sample` does."""
    if sampling.seed is None:
        return sampling
    seed = fold_seed(sampling.seed, prompt=prompt, completion=completion)
    return dataclasses.replace(sampling, seed=seed)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Completions as they come, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import dataclasses
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, Generic, TypeVar

from dovetail_infer.completion import Completion, Tokens

Piece = Tokens | Completion


Shown = TypeVar("Shown")
Block = TypeVar("Block", bound="_Block[Any]")


@dataclasses.dataclass(frozen=True)
class Source:
    """Requests that begin together.

    Attributes:
        count: Their number.
        submit: Submits all or none. Takes a function of (index, piece) for their pieces, and one
            that receives the id of each before it is queued.
        abort: Ends the requests of ids.
    """

    count: int
    submit: Callable[[Callable[[int, Piece], None], Callable[[int], None]], None]
    abort: Callable[[list[int]], None]


class _Block(Generic[Shown]):
    """A `with` or `async with` block around requests that begin and end with it."""

    def __init__(self, source: Source):
        self._source = source
        self._request_ids: list[int] | None = None
        self._completions: list[Completion | None] = [None] * source.count
        # None follows the last piece. It is put back, since other readers may wait for a piece.
        self._pieces: queue.SimpleQueue[tuple[int, Piece] | None] = queue.SimpleQueue()
        self._arrived: asyncio.Queue[tuple[int, Piece] | None] | None = None

    def _show(self, index: int, piece: Piece) -> Shown | None:
        """Returns the piece in the form in which a reader gets it, or None."""
        raise NotImplementedError

    def __enter__(self: Block) -> Block:
        self._open(self._pieces.put)
        return self

    def __iter__(self) -> Iterator[Shown]:
        self._check_open(in_asyncio=False)
        while (entry := self._pieces.get()) is not None:
            yield from self._take(*entry)
        self._pieces.put(None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    async def __aenter__(self: Block) -> Block:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[tuple[int, Piece] | None] = asyncio.Queue()

        def put(entry: tuple[int, Piece] | None) -> None:
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, entry)
            except RuntimeError:  # the event loop is closed: nobody reads any more
                self._close()

        self._open(put)
        self._arrived = arrived
        return self

    async def __aiter__(self) -> AsyncIterator[Shown]:
        self._check_open(in_asyncio=True)
        assert self._arrived is not None
        while (entry := await self._arrived.get()) is not None:
            for shown in self._take(*entry):
                yield shown
        self._arrived.put_nowait(None)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def _take(self, index: int, piece: Piece) -> Iterator[Shown]:
        if isinstance(piece, Completion):
            self._completions[index] = piece
        shown = self._show(index, piece)
        if shown is not None:
            yield shown

    def _open(self, put: Callable[[tuple[int, Piece] | None], None]) -> None:
        if self._request_ids is not None:
            raise RuntimeError(
                "a stream runs once, got a second with block. Call engine.stream again."
            )
        self._request_ids, left = [], self._source.count

        def put_all(index: int, piece: Piece) -> None:  # the engine's thread alone calls it
            nonlocal left
            put((index, piece))
            left -= isinstance(piece, Completion)
            if not left:
                put(None)

        if not left:
            put(None)
        try:
            self._source.submit(put_all, self._request_ids.append)
        except BaseException:  # such as Ctrl-C: the block does not begin, so it does not end either
            self._close()
            raise

    def _check_open(self, *, in_asyncio: bool) -> None:
        if self._request_ids is None:
            raise RuntimeError(
                "a stream begins with its block, got an iteration outside. Use `with "
                "engine.stream(...) as stream:`."
            )
        if in_asyncio != (self._arrived is not None):
            came, use = ("async for", "for") if in_asyncio else ("for", "async for")
            raise RuntimeError(
                f"a stream is read as its block was entered, got `{came}` in the other kind of "
                f"block. Use `{use}`."
            )

    def _close(self) -> None:
        if self._request_ids and None in self._completions:
            self._source.abort(self._request_ids)


class Stream(_Block[Tokens]):
    """Pieces of one completion. Leaving the `with` or `async with` block early aborts the request.

    Example:

        >>> from flax import nnx
        >>> from dovetail_infer import Engine, Sampling
        >>> from dovetail_infer.testing import ByteTokenizer, TinyDecoder
        >>> engine = Engine(TinyDecoder(rngs=nnx.Rngs(0)), tokenizer=ByteTokenizer())
        >>> with engine.stream("Hello", Sampling(max_tokens=4, temperature=0)) as stream:
        ...     text = "".join(piece.text for piece in stream)
        >>> text == stream.completion.text
        True
        >>> engine.close()
    """

    @property
    def completion(self) -> Completion:
        """The whole completion.

        Raises:
            RuntimeError: Not all pieces have been read yet.
        """
        (completion,) = self._completions
        if completion is None:
            raise RuntimeError(
                "a stream has its completion when all pieces are read, got completion before "
                "that. Iterate over the stream first."
            )
        return completion

    def _show(self, index: int, piece: Piece) -> Tokens | None:
        return None if isinstance(piece, Completion) else piece


class Streams(_Block[tuple[int, Piece]]):
    """Pieces of several completions, as they come: (index, `Tokens`), and (index, `Completion`).

    The `Completion` is the last of its index, which is `i * n + j` for completion j of prompt i.
    Leaving the `with` or `async with` block early aborts all requests.

    Example:

        >>> from flax import nnx
        >>> from dovetail_infer import Engine, Sampling, Tokens
        >>> from dovetail_infer.testing import ByteTokenizer, TinyDecoder
        >>> engine = Engine(TinyDecoder(rngs=nnx.Rngs(0)), tokenizer=ByteTokenizer())
        >>> texts = ["", ""]
        >>> with engine.streams(["Hello"], Sampling(max_tokens=4, seed=0), n=2) as streams:
        ...     for index, piece in streams:
        ...         if isinstance(piece, Tokens):
        ...             texts[index] += piece.text
        >>> engine.close()
    """

    def _show(self, index: int, piece: Piece) -> tuple[int, Piece]:
        return index, piece

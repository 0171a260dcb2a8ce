# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A completion as it comes, for threads and for asyncio."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType

from dovetail_infer.completion import Completion, Tokens

Piece = Tokens | Completion


class Stream:
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

    def __init__(
        self,
        submit: Callable[[Callable[[Piece], None], Callable[[int], None]], None],
        abort: Callable[[int], None],
    ):
        self._submit, self._abort = submit, abort
        self._request_id: int | None = None
        self._completion: Completion | None = None
        self._pieces: queue.SimpleQueue[Piece] = queue.SimpleQueue()
        self._arrived: asyncio.Queue[Piece] | None = None

    @property
    def completion(self) -> Completion:
        """The whole completion.

        Raises:
            RuntimeError: Not all pieces have been read yet.
        """
        if self._completion is None:
            raise RuntimeError(
                "a stream has its completion when all pieces are read, got completion before "
                "that. Iterate over the stream first."
            )
        return self._completion

    def __enter__(self) -> Stream:
        self._open(self._pieces.put)
        return self

    def __iter__(self) -> Iterator[Tokens]:
        self._check_open(in_asyncio=False)
        while self._completion is None:
            piece = self._pieces.get()
            if isinstance(piece, Completion):
                self._completion = piece
                self._pieces.put(piece)  # another thread may wait for a piece
                return
            yield piece

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    async def __aenter__(self) -> Stream:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[Piece] = asyncio.Queue()

        def put(piece: Piece) -> None:
            try:
                loop.call_soon_threadsafe(arrived.put_nowait, piece)
            except RuntimeError:  # the event loop is closed: nobody reads any more
                self._close()

        self._open(put)
        self._arrived = arrived
        return self

    async def __aiter__(self) -> AsyncIterator[Tokens]:
        self._check_open(in_asyncio=True)
        assert self._arrived is not None
        while self._completion is None:
            piece = await self._arrived.get()
            if isinstance(piece, Completion):
                self._completion = piece
                self._arrived.put_nowait(piece)  # another task may wait for a piece
                return
            yield piece

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close()

    def _open(self, put: Callable[[Piece], None]) -> None:
        if self._request_id is not None:
            raise RuntimeError(
                "a stream runs once, got a second with block. Call engine.stream again."
            )

        def made(request_id: int) -> None:
            self._request_id = request_id

        try:
            self._submit(put, made)
        except BaseException:  # such as Ctrl-C: the block does not begin, so it does not end either
            self._close()
            raise

    def _check_open(self, *, in_asyncio: bool) -> None:
        if self._request_id is None:
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
        if self._request_id is not None and self._completion is None:
            self._abort(self._request_id)

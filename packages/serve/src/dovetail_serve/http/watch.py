# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Watches`: a client that goes away cancels its request.

ASGI tells of it only to those that call `receive`, and a task for that costs as much as the rest of
a short request. So the task begins when a request has waited for a while; by then it no longer
matters. One timer looks at all requests, because one for each would cost more than the rest.
"""

import asyncio

from dovetail_serve.http.exchange import Receive

# Longer than a request to an idle server with a small model, and shorter than a person notices.
_LOOK_EVERY_S = 0.02


class Watch:
    """A request whose client may go away. `Watches.begin` makes it.

    Attributes:
        disconnected: The client is gone, and the task was cancelled for that reason.
        waits: A look has found the request, so it has waited for a while.
    """

    __slots__ = ("_reader", "_receive", "_task", "disconnected", "waits")

    def __init__(self, receive: Receive, task: "asyncio.Task[None] | None") -> None:
        self._receive, self._task = receive, task
        self._reader: asyncio.Task[None] | None = None
        self.disconnected = self.waits = False

    def look(self) -> None:
        """Reads from the client from the second look on."""
        if self.waits and self._reader is None:
            self._reader = asyncio.get_running_loop().create_task(self._read())
        self.waits = True

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.cancel()

    def forgive(self) -> None:
        """Takes the cancellation back, so that the task may end as if nothing had happened."""
        if self._task is not None:
            self._task.uncancel()

    async def _read(self) -> None:
        # Nothing else may follow a whole body.
        if (await self._receive())["type"] != "http.disconnect":
            return
        self.disconnected = True
        if self._task is not None:
            self._task.cancel()


class Watches:
    """The watches of all open requests of one event loop."""

    def __init__(self) -> None:
        self._open: set[Watch] = set()
        self._looks = False

    def begin(self, receive: Receive) -> Watch:
        """Watches the client of the current task. Call `end` with the result."""
        watch = Watch(receive, asyncio.current_task())
        self._open.add(watch)
        if not self._looks:
            self._looks = True
            self._look_later()
        return watch

    def end(self, watch: Watch) -> None:
        """Stops watching."""
        self._open.remove(watch)
        watch.stop()

    def _look_later(self) -> None:
        asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        for watch in self._open:
            watch.look()
        self._looks = bool(self._open)
        if self._looks:
            self._look_later()

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Queue`: requests wait here, and each batch is taken from here.

The queue has no clock, no lock and no event loop. Times are arguments, so a test can simulate them.

- Work conservation: `next` returns a batch whenever a request waits, unless there is a delay.
- A delay counts from the oldest arrival. Counted from the moment when the model became idle, each
  request would wait for it again behind every batch, and a loaded server would never be full.
- Levels: 0 first; within a level first in, first out. Levels are strict: nothing but its deadline
  bounds the wait of a request behind levels that always have work.
- Requests are divided where a batch ends, so that batches are full. No request finishes later for
  it: the rows before it are the same, in as many batches or fewer.
- A request of more rows than a batch is served as if its client sent a batch at a time: with each
  `max_batch` rows that have begun it goes to the end of its level. Otherwise one body of many small
  rows would keep all other clients waiting. So less than two batches of it come before a request
  that waits beside it, and smaller requests finish no later than first in, first out.
"""

import dataclasses
import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

from dovetail_serve.errors import DeadlineExceeded, NotReady, QueueFull, RequestError

# Weight of the newest batch in the moving average of seconds per batch: about ten batches count.
NEWEST = 0.2


@dataclasses.dataclass(slots=True, eq=False)
class Request:
    """A request in the queue.

    Attributes:
        rows: Number of rows, from 1.
        priority: Level; 0 is served first.
        deadline: Latest time for its rows to begin.
        payload: The caller's own; the queue does not look at it.
        arrival: Time of `Queue.add`.
        begun: Rows taken into batches.
    """

    rows: int
    priority: int = 0
    deadline: float = math.inf
    payload: Any = None
    arrival: float = 0.0
    begun: int = 0


class Slice(NamedTuple):
    """Rows of a request for one batch.

    Attributes:
        request: The request.
        start, stop: First row, and the end of the rows, exclusive.
    """

    request: Request
    start: int
    stop: int


class Queue:
    """Waiting requests of one model.

    Args:
        max_batch: Largest number of rows in a batch.
        max_delay_s: Seconds to wait for a full batch, from the oldest arrival.
        limit: Largest number of waiting requests.
        split: Divide requests over batches.
        priorities: Number of levels.
        batch_s: First estimate of the seconds of a batch; `finished` improves it.
    """

    def __init__(
        self,
        *,
        max_batch: int,
        max_delay_s: float = 0.0,
        limit: int = 256,
        split: bool = True,
        priorities: int = 1,
        batch_s: float = 0.0,
    ) -> None:
        self._max_batch = max_batch
        self._max_delay_s = max_delay_s
        self._limit = limit
        self._split = split
        # In the order of service, and any of them can leave in constant time.
        self._levels: list[OrderedDict[Request, None]] = [OrderedDict() for _ in range(priorities)]
        self._batch_s = batch_s
        self._waiting = 0
        self._rows = 0

    def __len__(self) -> int:
        """Number of requests with waiting rows."""
        return self._waiting

    @property
    def rows(self) -> int:
        """Number of waiting rows."""
        return self._rows

    def __iter__(self) -> Iterator[Request]:
        """Iterates over the waiting requests in the order of service."""
        return itertools.chain.from_iterable(self._levels)

    def add(self, request: Request, now: float) -> None:
        """Appends a request to its level.

        Args:
            request: A new request.
            now: Time, in seconds.

        Raises:
            QueueFull: `limit` requests wait. `retry_after_s` is the time to serve them
                at the measured rate.
            RequestError: There is no such level, or a whole request does not fit into a batch.
        """
        self.check_level(request.priority)
        if request.rows > self._max_batch and not self._split:
            raise RequestError(
                f"a request must have at most {self._max_batch} rows, got rows={request.rows}; "
                "send several, or start the server without --no-split (Batching(split=True))"
            )
        self.check_room()
        request.arrival = now
        self._levels[request.priority][request] = None
        self._waiting += 1
        self._rows += request.rows

    def check_room(self) -> None:
        """Raises QueueFull if `limit` requests wait. The limit is one for all levels."""
        if self._waiting >= self._limit:
            batches = math.ceil(self._rows / self._max_batch)
            raise QueueFull(
                f"at most {self._limit} requests may wait, got queued={self._waiting}; try again "
                "later, or start the server with a larger --queue (Batching(queue=...))",
                retry_after_s=batches * self._batch_s,
            )

    def check_wait(self, priority: int, seconds: float) -> None:
        """Raises QueueFull if the rows in front of a new request take longer than its deadline.

        Such a request would take a place, and its rows the time of others, for a late answer. The
        estimate holds while batches are full, so less than a batch in front refuses nothing. Two
        batches come on top: the one that runs, and its own.

        Args:
            priority: Level of the request.
            seconds: Time to its deadline.
        """
        if seconds == math.inf or self._rows < self._max_batch:
            return
        ahead = self._levels[: priority + 1]
        rows = sum(request.rows - request.begun for level in ahead for request in level)
        if rows < self._max_batch:
            return
        wait_s = (rows // self._max_batch + 2) * self._batch_s
        if wait_s > seconds:
            raise QueueFull(
                f"the requests in front of a new one must be done before its deadline, got "
                f"{rows} rows, about {wait_s * 1e3:.0f} ms, and a deadline in "
                f"{seconds * 1e3:.0f} ms; try again later, or allow more time",
                retry_after_s=wait_s - seconds,
            )

    def check_level(self, priority: int) -> None:
        """Raises RequestError if there is no such level."""
        if not 0 <= priority < len(self._levels):
            raise RequestError(
                f"priority must be from 0 to {len(self._levels) - 1}, got priority={priority}; "
                f"write priority=0, or start the server with --priorities {max(priority, 0) + 1} "
                f"(Batching(priorities={max(priority, 0) + 1}))"
            )

    def next(self, now: float) -> list[Slice] | float | None:
        """Takes the next batch. Call it while the model is idle.

        Args:
            now: Time, in seconds.

        Returns:
            The rows of a batch, in order; or the time for the next look, if the delay has
            not passed; or None if no request waits. Expired requests are passed over.
        """
        if not self._waiting:
            return None
        due = self._due(now) if self._max_delay_s else now
        return due if due > now else self._take(now)

    def cancel(self, request: Request) -> None:
        """Removes the waiting rows of a request. Other requests are left alone."""
        level = self._levels[request.priority]
        if request in level:
            del level[request]
            self._waiting -= 1
            self._rows -= request.rows - request.begun

    def expire(self, now: float) -> list[Request]:
        """Removes and returns the waiting requests whose deadline has passed."""
        expired = [request for request in self if request.deadline <= now]
        for request in expired:
            self.cancel(request)
        return expired

    def finished(self, seconds: float) -> None:
        """Records the duration of a batch, for estimates."""
        self._batch_s += NEWEST * (seconds - self._batch_s)

    def close(self) -> None:
        """Ends the delay: no more requests come."""
        self._max_delay_s = 0.0

    def _due(self, now: float) -> float:
        """Returns the end of the delay; it may have passed."""
        alive = [request for request in self if request.deadline > now]
        if not alive or sum(request.rows - request.begun for request in alive) >= self._max_batch:
            return now
        oldest = min(request.arrival for request in alive)
        deadline = min(request.deadline for request in alive)
        return min(oldest + self._max_delay_s, deadline - self._batch_s)

    def _take(self, now: float) -> list[Slice] | None:
        room, batch = self._max_batch, []
        for request in self:
            if request.deadline <= now:
                continue
            rows = request.rows - request.begun
            if rows > room and not self._split:
                break
            rows = min(rows, room)
            batch.append(Slice(request, request.begun, request.begun + rows))
            room -= rows
            if not room:
                break
        for request, start, stop in batch:
            self._rows -= stop - start
            request.begun = stop
            if stop == request.rows:
                del self._levels[request.priority][request]
                self._waiting -= 1
            elif start // self._max_batch < stop // self._max_batch:
                self._levels[request.priority].move_to_end(request)
        return batch or None


def shut_down() -> NotReady:
    """Returns the error for a request whose version had to stop."""
    return NotReady(
        "the model must be ready until the answer, got a request that still waited when its "
        "version had to stop; send it again later, or to another server"
    )


def too_late(seconds: float) -> DeadlineExceeded:
    """Returns the error for a request whose deadline of `seconds` has passed."""
    return DeadlineExceeded(
        f"the result must be there before the deadline, got none within {seconds * 1e3:g} ms; "
        "allow more time, or send fewer requests at once"
    )

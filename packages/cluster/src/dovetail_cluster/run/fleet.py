# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The driver's side of the daemons: places them, hears them, replaces lost ones.

A lost host gets a new daemon, at once the first time and then ever more slowly, until one joins;
after a notice, in a minute. A removed or sick host stays out until it is restored.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import queue
import sys
import threading
import time
from typing import Any

from dovetail_cluster.backends.base import Backend, Placed
from dovetail_cluster.events import Dismiss, Joined, Lost, Noticed
from dovetail_cluster.run import messages
from dovetail_cluster.run.printer import Printer
from dovetail_cluster.wire import BEAT_S, KEY, SILENCE_S, Link, Listener, new_key, read_key

_MARGIN_S = 2.0  # by which a daemon gives up before the controller does
_RETRY_S = 60.0  # at most, between two daemons on one place
_NOTICE_S = 60.0  # before a place that was announced to go away is tried again
_CLOSE_S = 5.0  # for daemons to end by themselves

_log = logging.getLogger("dovetail_cluster")


@dataclasses.dataclass(eq=False)
class Member:
    """A connected daemon.

    Attributes:
        number: Number of the host, never used again.
        place: Its place.
        name: Its name in messages.
        link: Its connection.
        ready: Its server of ranks is up.
        noticed: It will be taken away.
    """

    number: int
    place: int
    name: str
    link: Link
    ready: bool = False
    noticed: bool = False


@dataclasses.dataclass(eq=False)
class Place:
    """A place for a daemon.

    Attributes:
        placed: The backend's handle of the newest daemon.
        member: The connected daemon.
        absent: No daemon belongs here now.
        lost: The newest daemon was connected, and is not any more.
        busy: A thread is ending or placing the daemon.
        failures: Daemons in a row without a join.
        retry_at: Time before which none is placed, by `time.monotonic()`.
    """

    placed: Placed | None = None
    member: Member | None = None
    absent: bool = False
    lost: bool = False
    busy: bool = False
    failures: int = 0
    retry_at: float = 0.0


class Fleet:
    """All daemons of a cluster.

    Args:
        backend: Places the daemons.
        preload: Modules for their servers to import.
        logs: Whose output they send: "all", "first" or "none".

    Attributes:
        count: Number of places.
        broken: Why a daemon can never serve, "" for none.
    """

    def __init__(self, backend: Backend, *, preload: tuple[str, ...], logs: str) -> None:
        self.count = backend.count
        self.broken = ""
        self._backend, self._preload, self._logs = backend, preload, logs
        self._lock = threading.RLock()
        self._inbox: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._members: dict[int, Member] = {}
        self._places = [Place() for _ in range(backend.count)]
        self._next = 0
        self._printer = Printer()
        self._closed = threading.Event()
        self._key = read_key(os.environ) or new_key()
        listen = backend.listen if ":" in backend.listen else f"{backend.listen}:0"
        self._listener = Listener(listen, self._key, self._accept)
        for i in range(self.count):
            self._put(i)
        threading.Thread(target=self._keep, daemon=True, name="dovetail-fleet").start()

    @property
    def address(self) -> str:
        """The controller's address."""
        return self._listener.address

    def begin(self) -> list[Member]:
        """Forgets all messages of the past, and returns the ready hosts."""
        with self._lock:
            self._inbox = queue.SimpleQueue()
            return [member for member in self._members.values() if member.ready]

    def get(self, timeout_s: float) -> tuple[int, Any] | None:
        """The next message and its host. None if none comes in time."""
        try:
            return self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def post(self, message: Any) -> None:
        """Puts a message of the driver itself among those of the hosts."""
        with self._lock:
            self._inbox.put((-1, message))

    def send(self, host: int, message: Any) -> None:
        """Sends a message to a host. Does nothing if it is gone."""
        with self._lock:
            member = self._members.get(host)
            if member is None:
                return
            place = self._places[member.place]
            if isinstance(message, Dismiss) and member.noticed:
                place.failures, place.retry_at = 1, time.monotonic() + _NOTICE_S
            elif isinstance(message, Dismiss):
                place.absent = True
            member.link.send(message)

    def hosts(self) -> list[int]:
        """Numbers of all connected hosts."""
        with self._lock:
            return list(self._members)

    def ready(self) -> dict[int, Member]:
        """Ready hosts by place."""
        with self._lock:
            return {member.place: member for member in self._members.values() if member.ready}

    def awaited(self) -> set[int]:
        """Places without a ready host, but for absent ones."""
        with self._lock:
            present = {i for i, place in enumerate(self._places) if not place.absent}
            return present - set(self.ready())

    def name(self, place: int) -> str:
        """Name of the place in messages."""
        placed = self._places[place].placed
        return f"place {place}" if placed is None else placed.name

    def flush(self) -> None:
        """Waits briefly until the output so far is printed."""
        self._printer.flush()

    def member(self, place: int) -> Member:
        """The host at a place.

        Raises:
            RuntimeError: There is none now.
        """
        with self._lock:
            member = self._places[place].member
            if member is None:
                raise RuntimeError(
                    f"host {place} must be connected for that, got none; wait for it, or call "
                    f"restore() if it was removed"
                )
            return member

    def remove(self, place: int) -> None:
        """Kills the host's daemon and ranks, and places no other."""
        self._places[place].absent = True
        self._end(place)

    def restore(self, place: int) -> None:
        """Places a new daemon where one was removed or dismissed. Returns at once."""
        with self._lock:
            spot = self._places[place]
            spot.absent, spot.failures, spot.retry_at = False, 0, 0.0

    def close(self) -> None:
        """Ends all daemons, waits until they are gone, and gives the hosts back."""
        self._closed.set()
        with self._lock:
            members = list(self._members.values())
        for member in members:
            member.link.send(Dismiss(member.number, "the cluster is closed"))
        end = time.monotonic() + _CLOSE_S
        for member in members:
            placed = self._places[member.place].placed
            # A backend may be unable to tell; the end of the connection tells as much.
            while placed is not None and placed.poll() is None and time.monotonic() < end:
                if member.number not in self._members:
                    break
                time.sleep(0.02)
        self._listener.close()
        for place in self._places:
            if place.placed is not None:
                place.placed.kill()
        for member in members:
            member.link.close(flush_s=0.0)
        self._backend.close()

    # Placing.

    def _put(self, i: int) -> None:
        line = ["-m", "dovetail_cluster.run.daemon", "--controller", self.address]
        line += ["--place", str(i)]
        if self._preload:
            line += ["--preload", ",".join(self._preload)]
        self._places[i].placed = self._backend.place(line, {KEY: self._key.hex()}, place=i)

    def _end(self, i: int) -> None:
        placed = self._places[i].placed
        if placed is not None:
            placed.kill()
        member = self._places[i].member
        if member is not None:
            self._drop(member, "it was removed")

    def _replace(self, i: int) -> None:
        """Ends the rest of a place's daemon, and places another."""
        place = self._places[i]
        try:
            self._end(i)
            if not self._closed.is_set() and not place.absent:
                self._put(i)
        except Exception:  # any backend; it is tried again
            _log.exception("%s cannot be placed again", self.name(i))
        finally:
            place.failures += 1
            place.lost = False
            place.retry_at = time.monotonic() + min(2.0**place.failures, _RETRY_S)
            place.busy = False
        if self._closed.is_set() and place.placed is not None:
            place.placed.kill()

    def _keep(self) -> None:
        """Sends signs of life, gives up silent hosts, and replaces lost ones."""
        while not self._closed.wait(BEAT_S):
            now = time.monotonic()
            with self._lock:
                members = list(self._members.values())
            for member in members:
                member.link.send(messages.Beat())
                if now - member.link.heard > SILENCE_S + _MARGIN_S:
                    self._drop(member, f"no word from it for {SILENCE_S + _MARGIN_S:g} s")
            for i, place in enumerate(self._places):
                vacant = place.member is None and not (place.absent or place.busy or self.broken)
                ended = place.placed is None or place.placed.poll() is not None
                if vacant and now >= place.retry_at and (ended or place.lost):
                    place.busy = True
                    threading.Thread(target=self._replace, args=(i,), daemon=True).start()

    # Hearing.

    def _accept(self, link: Link) -> None:
        member: list[Member] = []

        def receive(message: Any) -> None:
            if member:
                self._hear(member[0], message)
            elif isinstance(message, messages.Hello) and 0 <= message.place < self.count:
                member.append(self._welcome(link, message))
            else:
                _log.warning("%s must begin with a place below %d", link.peer, self.count)
                link.close(flush_s=0.0)

        def end(why: str) -> None:
            if member:
                self._drop(member[0], why)

        link.start(receive, end)

    def _welcome(self, link: Link, hello: messages.Hello) -> Member:
        with self._lock:
            place = self._places[hello.place]
            if place.member is not None:
                self._drop(place.member, "another daemon has taken its place")
            name = hello.name if place.placed is None else place.placed.name
            member = Member(self._next, hello.place, name, link)
            self._next += 1
            self._members[member.number] = place.member = member
            place.lost = False
            place.failures = max(place.failures, 1)  # it came: no need to hurry after its loss
        paths = tuple(path or os.getcwd() for path in sys.path)
        link.send(messages.Welcome(member.number, paths, self._logs))
        return member

    def _hear(self, member: Member, message: Any) -> None:
        match message:
            case messages.Beat():
                return
            case messages.Lines(who=who, text=text):
                prefix = f"[{who}] "
                self._printer.put("".join(f"{prefix}{line}\n" for line in text.split("\n")))
                return
            case messages.Broken(why=why):
                self.broken = f"{member.name}: {why}"
                return
            case messages.Ready():
                message = Joined(member.number, member.name)
            case messages.RunEvent(event=Noticed()):
                member.noticed = True
        with self._lock:
            if isinstance(message, Joined):
                member.ready = True
                self._places[member.place].failures = 0
            if member.number in self._members:
                self._inbox.put((member.number, message))

    def _drop(self, member: Member, why: str) -> None:
        with self._lock:
            if self._members.pop(member.number, None) is None:
                return
            place = self._places[member.place]
            if place.member is member:
                place.member, place.lost = None, True
                place.retry_at = 0.0 if place.failures == 0 else place.retry_at
            if not self._closed.is_set():
                self._inbox.put((member.number, Lost(member.number, why)))
        # In a thread: a link that is cut is closed only by its own reader.
        threading.Thread(target=member.link.close, kwargs={"flush_s": 0.0}, daemon=True).start()

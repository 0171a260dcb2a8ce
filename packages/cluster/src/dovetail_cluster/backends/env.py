# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Hosts on which a launcher has started the same script: mpirun, a JobSet, ssh in a loop.

Each host finds its index and the address of host 0 in its environment. The script on host 0
controls the job. The scripts on the others follow: each dials host 0, starts a daemon when it is
told to, reports the daemon's end, and returns from `run` with the outcome that host 0 sends. Hosts
may start in any order. A host whose script is started again joins again, and so does every host
when the script of host 0 is.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import cloudpickle

from dovetail_cluster import wire
from dovetail_cluster.backends.base import Placed
from dovetail_cluster.backends.follow import (
    ADDRESS,
    AGAIN_S,
    Begin,
    End,
    Ended,
    Follower,
    Follows,
    Outcome,
)
from dovetail_cluster.backends.process import Process
from dovetail_cluster.errors import JobError

HOSTS = "DOVETAIL_CLUSTER_HOSTS"
HOST = "DOVETAIL_CLUSTER_HOST"

# Seconds that host 0 waits at its end for hosts that have just been started, or started again.
_LINGER_S = 30.0
_T = TypeVar("_T")


class Env:
    """The hosts that DOVETAIL_CLUSTER_* describe.

    DOVETAIL_CLUSTER_ADDRESS is HOST:PORT of host 0, DOVETAIL_CLUSTER_HOSTS the number of hosts and
    DOVETAIL_CLUSTER_HOST the index of this one, from 0. DOVETAIL_CLUSTER_KEY or
    DOVETAIL_CLUSTER_KEY_FILE holds the key, the same on all hosts.

    Args:
        wait_s: Seconds that a host looks for host 0 before it gives up.

    Attributes:
        count: Number of hosts.
        listen: Address of host 0.
        host: Index of this host.
        key: The key.

    Raises:
        ValueError: A variable is missing or cannot be read.
        OSError: Host 0 cannot listen at its address.
    """

    def __init__(self, *, wait_s: float = 600.0):
        self.count = _number(HOSTS, least=1)
        self.host = _number(HOST, least=0)
        if self.host >= self.count:
            raise ValueError(
                f"{HOST} must be below {HOSTS}={self.count}, got {self.host}; count hosts from 0"
            )
        key = wire.read_key(os.environ)
        if key is None:
            raise ValueError(
                f"all hosts must share a key, got neither {wire.KEY} nor {wire.KEY_FILE}; type "
                f"`openssl rand -hex 32 > key; chmod 600 key` and export {wire.KEY_FILE}=key"
            )
        self.key = key
        self._address = _variable(ADDRESS)
        name, port = wire.split(self._address)
        self._calls = self._placed = 0
        self._lock = threading.Condition()
        self._sent = dict.fromkeys(range(1, self.count), 0)  # outcomes, by host
        self._links: dict[int, wire.Link] = {}
        self._remote: dict[int, Remote] = {}
        self._outcomes: list[Outcome] = []
        self._own: Process | None = None
        self._listener: wire.Listener | None = None
        self._follower: Follower | None = None
        self.listen = name
        if self.leads:
            self.listen = _resolve(name, wait_s)
            self._listener = wire.Listener(f"{self.listen}:{port}", key, self._meet)
        else:
            self._follower = Follower(self._address, key, host=self.host, wait_s=wait_s)

    @property
    def leads(self) -> bool:
        """True if this is host 0, which controls the job."""
        return self.host == 0

    def place(self, line: Sequence[str], environment: Mapping[str, str], *, place: int) -> Placed:
        """Starts a daemon here for place 0, elsewhere as soon as that host is there.

        Args:
            line: The command after the Python interpreter.
            environment: Variables to add.
            place: Index of the host.

        Returns:
            The daemon.
        """
        if place == self.host:
            self._own = Process(line, {**os.environ, **environment})
            return Here(self._own)
        with self._lock:
            self._placed += 1
            begin = Begin(self._placed, tuple(line), wire.without_keys(environment))
            remote = Remote(place, begin)
            self._remote[place] = remote
            if place in self._links:
                remote.attach(self._links[place])
        return remote

    def together(self, call: Callable[[], _T]) -> _T:
        """Makes a call on host 0, and has the same outcome on every host.

        SIGTERM at the script goes to the daemon of its host, as a notice.

        Args:
            call: Called on host 0 alone.

        Returns:
            Its value, on every host.

        Raises:
            JobError: The call has raised an exception that cannot be pickled.
            HostsError: Host 0 was not reached within `wait_s`.
            Exception: The call has raised it.
        """
        self._calls += 1
        with self._forward_sigterm():
            if self._follower is not None:
                return self._follower.outcome(self._calls)
            try:
                value = call()
                data = cloudpickle.dumps(value)
            except BaseException as error:
                self._tell(_pickled_error(error), raised=True)
                raise
            self._tell(data, raised=False)
            return value

    def close(self) -> None:
        """Ends the daemon of a host that follows. On host 0, stops listening.

        Host 0 first waits, for half a minute at most, for hosts that do not know the outcome yet.
        """
        if self._follower is not None:
            self._follower.close()
        with self._lock:
            self._lock.wait_for(
                lambda: all(sent == len(self._outcomes) for sent in self._sent.values()), _LINGER_S
            )
        if self._listener is not None:
            self._listener.close()
        with self._lock:
            links = list(self._links.values())
        for link in links:
            link.close(flush_s=5.0)

    @contextlib.contextmanager
    def _forward_sigterm(self) -> Iterator[None]:
        def forward(number: int, frame: Any) -> None:
            own = self._own if self._follower is None else self._follower.daemon
            if own is not None:
                own.signal(number)

        if threading.current_thread() is not threading.main_thread():
            yield  # Python lets no other thread set a handler
            return
        before = signal.signal(signal.SIGTERM, forward)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    def _meet(self, link: wire.Link) -> None:
        met: list[int] = []

        def receive(message: Follows | Ended) -> None:
            if isinstance(message, Follows):
                met.append(message.host)
                self._welcome(link, message)
            else:
                with self._lock:
                    remote = self._remote.get(met[0])
                # It may be the news of the daemon before.
                if remote is not None and remote.number == message.number:
                    remote.end(link, message.code)

        def end(why: str) -> None:
            with self._lock:
                gone = [host for host in met if self._links.get(host) is link]
                for host in gone:
                    del self._links[host]
                remotes = [self._remote[host] for host in gone if host in self._remote]
            for remote in remotes:
                remote.end(link, -1)

        link.start(receive, end)

    def _welcome(self, link: wire.Link, message: Follows) -> None:
        with self._lock:
            self._links[message.host] = link
            self._send(message.host, since=message.call - 1)
            remote = self._remote.get(message.host)
            if remote is not None:
                remote.attach(link)

    def _tell(self, value: bytes, *, raised: bool) -> None:
        with self._lock:
            self._outcomes.append(Outcome(self._calls, value, raised))
            for host in self._links:
                self._send(host, since=self._calls - 1)

    def _send(self, host: int, *, since: int) -> None:
        for outcome in self._outcomes[since:]:
            self._links[host].send(outcome)
        self._sent[host] = len(self._outcomes)
        self._lock.notify_all()


class Here:
    """The daemon of host 0. See `Placed`."""

    name = "host 0"

    def __init__(self, process: Process):
        self._process = process

    def poll(self) -> int | None:
        """Exit code, None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Kills the daemon."""
        self._process.kill()


class Remote:
    """The daemon of another host, whose script starts it. See `Placed`."""

    def __init__(self, host: int, begin: Begin):
        self.name, self.number, self._begin = f"host {host}", begin.number, begin
        self._link: wire.Link | None = None
        self._code: int | None = None

    def attach(self, link: wire.Link) -> None:
        """Starts the daemon, unless it has been started or killed before."""
        if self._link is None and self._code is None:
            self._link = link
            link.send(self._begin)

    def end(self, link: wire.Link, code: int) -> None:
        """Notes the end of the daemon that was started over `link`."""
        if link is self._link and self._code is None:
            self._code = code

    def poll(self) -> int | None:
        """Exit code, -1 if its script has gone; None while it runs or its host is awaited."""
        return self._code

    def kill(self) -> None:
        """Has the daemon killed, or not started."""
        if self._code is None:
            if self._link is not None:
                self._link.send(End())
            self._code = -signal.SIGKILL


def _pickled_error(error: BaseException) -> bytes:
    if not isinstance(error, Exception):
        error = JobError(f"the call on host 0 was ended by {type(error).__name__}")
    try:
        data = pickle.dumps(error)
        pickle.loads(data)  # an exception may pickle and not come back
    except Exception as why:
        unsendable = JobError(
            f"{type(error).__name__} on host 0: {error} (it cannot be sent: {why})"
        )
        data = pickle.dumps(unsendable)
    return data


def _resolve(name: str, wait_s: float) -> str:
    """The address of a name, which a cluster's name server may not know at once."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return socket.gethostbyname(name)
        except socket.gaierror:
            if time.monotonic() > deadline:
                raise
            time.sleep(AGAIN_S)


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise ValueError(
            f"Env() must find {ADDRESS}, {HOSTS} and {HOST}, got no {name}; export it on each "
            f"host, or write Cluster.local(hosts=2)"
        )
    return value


def _number(name: str, *, least: int) -> int:
    text = _variable(name)
    if not text.isdecimal() or int(text) < least:
        raise ValueError(
            f"{name} must be a number from {least}, got {text!r}; export {name}={least}"
        )
    return int(text)

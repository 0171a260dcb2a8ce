# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The daemon of a host: obeys the controller, and reports on its ranks.

    python -m dovetail_cluster.run.daemon --controller HOST:PORT --place 0 --preload optax,flax

A daemon without its controller kills its ranks and exits: the controller counts it as lost soon
after, and may run the job elsewhere. SIGTERM announces the end of the host; a second one ends the
daemon.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from dovetail_cluster.events import (
    Commit,
    Dismiss,
    Dump,
    Dumped,
    Exited,
    Kill,
    Noticed,
    Propose,
    Reserve,
    Reserved,
    Start,
)
from dovetail_cluster.run import messages
from dovetail_cluster.run.child import Child
from dovetail_cluster.run.server import send_request
from dovetail_cluster.run.shelf import Shelf, base
from dovetail_cluster.run.surroundings import rank_environment
from dovetail_cluster.wire import (
    BEAT_S,
    SILENCE_S,
    Link,
    Refused,
    dial,
    own_key,
    read_frame,
)

LOST, REFUSED = 3, 2  # exit codes: no controller any more, none from the start

_log = logging.getLogger("dovetail_cluster")


class Daemon:
    """The daemon of one host.

    Args:
        link: Connection to the controller, not yet started.
        place: Number of the host's place.
        devices: CPU devices of each rank; None leaves the platform to JAX.
        preload: Modules for the server to import.
    """

    def __init__(
        self, link: Link, *, place: int, devices: int | None = None, preload: tuple[str, ...] = ()
    ) -> None:
        self._link, self._place = link, place
        self._devices, self._preload = devices, preload
        self._inbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._children: dict[int, Child] = {}
        self._rank: Child | None = None  # of the newest generation
        self._asking = threading.Lock()
        self._count = 0
        self._program = messages.Program(0, b"")
        self._clearing: int | None = None
        self._coordinator: socket.socket | None = None
        self._notices = 0
        self._welcome = messages.Welcome(-1, (), "all")
        self._shelf = Shelf(base(os.environ))
        self._shelf_of_run = self._shelf.path
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def run(self) -> int:
        """Serves until the controller lets the host go, or is lost. Returns the exit code."""
        signal.signal(signal.SIGTERM, lambda *_: self._inbox.put(("notice", None)))
        self._link.start(
            lambda message: self._inbox.put(("controller", message)),
            lambda why: self._inbox.put(("lost", why)),
        )
        self._link.send(messages.Hello(self._place, socket.gethostname()))
        beat = time.monotonic()
        while True:
            try:
                kind, message = self._inbox.get(timeout=BEAT_S / 2)
            except queue.Empty:
                kind, message = "", None
            # Tested each time: a rank that goes on by itself reports ten times a second.
            if time.monotonic() - self._link.heard > SILENCE_S:
                kind, message = "lost", f"no word from it for {SILENCE_S:g} s"
            if time.monotonic() - beat >= BEAT_S:
                beat = time.monotonic()
                self._link.send(messages.Beat())
            code = self._handle(kind, message)
            if code is not None:
                self._end()
                return code

    def _handle(self, kind: str, message: Any) -> int | None:
        match kind:
            case "lost":
                _log.warning("place %d lost its controller: %s", self._place, message)
                return LOST
            case "notice":
                self._notices += 1
                if self._notices > 1:
                    return 0
                self._tell(Noticed(self._welcome.host))
            case "server":
                return self._hear_server(message)
            case "controller":
                return self._obey(message)
            case "child":
                self._link.send(message)
        return None

    def _tell(self, event: Any) -> None:
        self._link.send(messages.RunEvent(self._program.run, event))

    # The server.

    def _start_server(self) -> None:
        own, theirs = socket.socketpair()
        self._server = subprocess.Popen(
            [sys.executable, "-P", "-m", "dovetail_cluster.run.server", str(theirs.fileno())],
            env=rank_environment(os.environ, self._devices),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self._socket = own
        setup = {
            "paths": self._welcome.paths,
            "preload": self._preload,
            "shelf": str(self._shelf.path),
        }
        send_request(own, setup, [])
        threading.Thread(target=self._read_server, args=(own,), daemon=True).start()

    def _read_server(self, sock: socket.socket) -> None:
        try:
            while True:
                self._inbox.put(("server", json.loads(read_frame(sock))))
        except (EOFError, OSError):
            self._inbox.put(("server", {"gone": True}))

    def _hear_server(self, answer: dict[str, Any]) -> int | None:
        match answer:
            case {"ready": True}:
                self._link.send(messages.Ready())
            case {"ready": False, "why": why}:
                self._link.send(messages.Broken(why))
                return 1
            case {"ended": number, "code": code}:
                self._bury(self._children.pop(number), code)
            case {"gone": True}:
                self._link.send(messages.Lines("daemon", "the server of ranks is gone"))
                return 1
        return None

    def _ask_server(self, request: dict[str, Any], files: list[int]) -> None:
        assert self._socket is not None
        try:
            with self._asking:  # threads that dump stacks or end a task ask as well
                send_request(self._socket, request, files)
        except OSError:
            pass  # its end is reported by the reader

    def _signal(self, child: Child | None, number: int, *, group: bool = False) -> None:
        if child is not None and child.ended is None:
            request = {"signal": int(number), "to": child.number, "group": group}
            self._ask_server(request, [])

    # What the controller says.

    def _obey(self, message: Any) -> int | None:
        match message:
            case messages.Welcome():
                self._welcome = message
                self._start_server()
            case messages.Program():
                self._program = message
                self._shelf_of_run = self._shelf.begin(message.run)
            case Reserve():
                self._reserve(message)
            case Start():
                self._start(message)
            case Propose() | Commit() | messages.Leave():
                rank = self._rank_of(message.generation)
                if rank is not None:
                    rank.send(message)
            case Dump():
                self._dump(message)
            case Kill():
                rank = self._rank_of(message.generation)
                if rank is None:
                    self._tell(Exited(self._welcome.host, message.generation, 0))
                self._signal(rank, signal.SIGKILL, group=True)
            case messages.Task():
                self._start_task(message)
            case messages.Clear():
                self._clearing = message.run
                for child in self._children.values():
                    self._signal(child, signal.SIGKILL, group=True)
                self._clear()
            case messages.Fault():
                self._injure(message)
            case Dismiss(why=why):
                _log.info("place %d is dismissed: %s", self._place, why)
                return 0
        return None

    def _rank_of(self, generation: int) -> Child | None:
        """The living rank of that generation."""
        rank = self._rank
        alive = rank is not None and rank.ended is None and rank.first.generation == generation
        return rank if alive else None

    def _reserve(self, message: Reserve) -> None:
        """Finds a port and keeps it bound, so no other program gets it before the rank.

        The coordinator binds with SO_REUSEPORT, as gRPC does, and it alone listens.
        """
        if self._coordinator is not None:
            self._coordinator.close()
        family = socket.AF_INET6 if ":" in self._link.local else socket.AF_INET
        self._coordinator = socket.socket(family)
        self._coordinator.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._coordinator.bind((self._link.local, 0))
        host = f"[{self._link.local}]" if family == socket.AF_INET6 else self._link.local
        address = f"{host}:{self._coordinator.getsockname()[1]}"
        self._tell(Reserved(self._welcome.host, message.generation, address))

    def _start(self, start: Start) -> None:
        job = messages.Job(
            self._welcome.host,
            start.generation,
            start.rank,
            start.hosts,
            start.address,
            self._link.local,
            self._program.data,
            str(self._shelf_of_run),
            self._program.begun_s,
        )
        run = self._program.run
        log = self._welcome.logs == "all" or (self._welcome.logs == "first" and start.rank == 0)
        self._rank = self._fork(
            job,
            f"rank {start.rank}",
            lambda event: self._inbox.put(("child", messages.RunEvent(run, event))),
            log=log,
        )

    def _start_task(self, task: messages.Task) -> None:
        child = self._fork(
            task,
            f"host {self._place}",
            lambda message: self._inbox.put(("child", message)),
            log=self._welcome.logs != "none",
        )
        if task.limit_s is not None:
            end = threading.Timer(task.limit_s, self._signal, (child, signal.SIGKILL))
            end.daemon = True
            end.start()

    def _fork(self, first: Any, who: str, receive: Callable[[Any], None], *, log: bool) -> Child:
        self._count += 1
        child = Child(self._count, first, receive)
        self._children[child.number] = child
        self._ask_server({"fork": child.number}, child.files)
        child.start(who, self._link, log=log)
        return child

    def _bury(self, child: Child, code: int) -> None:
        child.ended = code
        child.close()
        if isinstance(child.first, messages.Task):
            why = f"its process ended with exit code {code}, or ran longer than its limit"
            # Behind the task's own answer, if it gave one: the driver takes the first.
            done = messages.TaskDone(child.first.number, None, why, None)
            self._inbox.put(("child", done))
        else:
            event = Exited(child.first.host, child.first.generation, code)
            self._inbox.put(("child", messages.RunEvent(self._program.run, event)))
        self._clear()

    def _clear(self) -> None:
        if self._clearing is not None and not self._children:
            self._inbox.put(("child", messages.Cleared(self._clearing)))
            self._clearing = None

    def _dump(self, message: Dump) -> None:
        rank, run, host = self._rank_of(message.generation), self._program.run, self._welcome.host

        def ask() -> None:
            stacks = "" if rank is None else rank.stacks(lambda: self._signal(rank, signal.SIGUSR1))
            event = Dumped(host, message.generation, stacks)
            self._inbox.put(("child", messages.RunEvent(run, event)))

        threading.Thread(target=ask, daemon=True, name="dovetail-stacks").start()

    def _injure(self, fault: messages.Fault) -> None:
        numbers = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "resume": signal.SIGCONT}
        if fault.kind == "end":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault.kind == "notice":
            os.kill(os.getpid(), signal.SIGTERM)
        elif self._rank is None or self._rank.ended is not None:
            _log.warning("no rank runs on place %d to %s", self._place, fault.kind)
        elif fault.kind == "stall":
            self._rank.send(messages.Stall(fault.seconds))
        else:
            self._signal(self._rank, numbers[fault.kind])

    def _end(self) -> None:
        """Ends the server, which kills the ranks, and closes the connection."""
        if self._socket is not None and self._server is not None:
            self._socket.shutdown(socket.SHUT_RDWR)
            try:
                self._server.wait(5.0)
            except subprocess.TimeoutExpired:
                self._server.kill()  # its ranks die with it
                self._server.wait()
        self._shelf.close()
        self._link.close()


def main(arguments: list[str] | None = None) -> int:
    """Runs a daemon. Returns its exit code.

    Args:
        arguments: The command line after the program's name. Default: this process's.
    """
    parser = argparse.ArgumentParser(prog="python -m dovetail_cluster.run.daemon")
    parser.add_argument("--controller", required=True, metavar="HOST:PORT")
    parser.add_argument("--place", required=True, type=int, metavar="N")
    parser.add_argument("--devices", type=int, metavar="D", help="CPU devices of each rank")
    parser.add_argument("--preload", default="", metavar="A,B", help="modules to import first")
    options = parser.parse_args(arguments)
    try:
        link = dial(options.controller, own_key())
    except Refused as error:
        _log.error("place %d: %s refuses: %s", options.place, options.controller, error)
        return REFUSED
    except OSError as error:  # its network is down, or the controller is gone; it is placed again
        _log.error("place %d: nothing answers at %s: %s", options.place, options.controller, error)
        return LOST
    preload = tuple(name for name in options.preload.split(",") if name)
    return Daemon(link, place=options.place, devices=options.devices, preload=preload).run()


if __name__ == "__main__":
    sys.exit(main())

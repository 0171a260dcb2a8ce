# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The server of ranks: imports jax and the preloaded modules once, then forks.

A fork takes milliseconds, an import of jax a second. The server has one thread and never touches a
device, so that its children may. The standard library's forkserver would do, but old Pythons drop
`sys.path` in it, and it hides the failure of a preload (python/cpython#117378).

The daemon sends frames over a socket pair, each with three file descriptors for the child's
socket, output and stacks. The end of that socket is the daemon's end, however it came: the server
then kills all that it has forked.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import io
import json
import os
import selectors
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from dovetail_cluster.run import rank
from dovetail_cluster.run.shelf import remove
from dovetail_cluster.wire import read_frame, write_frame

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent(number: int) -> None:
    """Asks the kernel for a signal when the parent ends; 0 for none. Only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def send_request(sock: socket.socket, request: dict[str, Any], files: list[int]) -> None:
    """Sends a request to the server.

    Args:
        sock: Connection to the server.
        request: {"fork": number}, or {"signal": number, "to": child, "group": whether}.
        files: Descriptors for a fork: the child's socket, output and stacks.
    """
    socket.send_fds(sock, [b"%d" % len(files)], files)
    write_frame(sock, json.dumps(request).encode())


def _receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    mark, files, _, _ = socket.recv_fds(sock, 1, 3)
    if not mark:
        raise EOFError("the daemon is gone")
    return json.loads(read_frame(sock)), files


def preload(names: list[str]) -> str | None:
    """Imports jax and the modules. Returns the failure, with the module's name, or None."""
    for name in ("jax", "cloudpickle", *names):
        try:
            importlib.import_module(name)
        except BaseException:  # a module may even exit
            return f"the preloaded module {name} cannot be imported:\n{traceback.format_exc()}"
    return None


class Server:
    """Forks children and reports their exits.

    Args:
        sock: Connection to the daemon.
        run: Called with the child's socket in each child. It must not return.
    """

    def __init__(self, sock: socket.socket, run: Callable[[socket.socket], NoReturn]) -> None:
        self._sock, self._run = sock, run
        self._children: dict[int, int] = {}  # process ids to the daemon's numbers
        self._woken, wake = socket.socketpair()
        self._woken.setblocking(False)
        wake.setblocking(False)
        self._wake = wake
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # these are for the daemon

    def serve(self) -> None:
        """Answers requests until the daemon is gone. Then kills all children and returns."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._sock, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            try:
                while True:
                    for key, _ in selector.select():
                        if key.fileobj is self._sock:
                            self._answer(*_receive(self._sock))
                        else:
                            self._woken.recv(4096)
                    self._reap()
            except (EOFError, OSError):
                pass  # the daemon is gone
        self._end()

    def _tell(self, **answer: Any) -> None:
        write_frame(self._sock, json.dumps(answer).encode())

    def _answer(self, request: dict[str, Any], files: list[int]) -> None:
        match request:
            case {"fork": number}:
                self._fork(number, files)
            case {"signal": number, "to": child, "group": group}:
                for pid, owner in self._children.items():
                    if owner == child:
                        _kill(pid, number, group=group)

    def _fork(self, number: int, files: list[int]) -> None:
        with warnings.catch_warnings():
            # jax warns of forks, for it cannot know that no backend is up, nor any thread.
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid == 0:
            self._child(files)
        with contextlib.suppress(OSError):  # the child was first, or has ended
            os.setpgid(pid, pid)
        for file in files:
            os.close(file)
        self._children[pid] = number
        self._tell(forked=number, pid=pid)

    def _child(self, files: list[int]) -> NoReturn:
        try:
            server = os.getppid()
            os.setpgid(0, 0)
            die_with_parent(signal.SIGKILL)
            if os.getppid() != server:
                os._exit(1)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            # A notice may come to all processes of a host. A handler, unlike SIG_IGN, is not
            # inherited by programs that the rank starts.
            signal.signal(signal.SIGTERM, lambda *_: None)
            for open_socket in (self._sock, self._woken, self._wake):
                open_socket.close()
            link, output, stacks = files
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            for stream in (sys.stdout, sys.stderr):
                if isinstance(stream, io.TextIOWrapper):
                    stream.reconfigure(line_buffering=True)
            faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
            self._run(socket.socket(fileno=link))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _reap(self) -> None:
        for pid in list(self._children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                _kill(pid, signal.SIGKILL, group=True)  # what the child has left
                self._tell(ended=self._children.pop(pid), code=code)

    def _end(self) -> None:
        for pid in self._children:
            _kill(pid, signal.SIGKILL, group=True)
        for pid in self._children:
            os.waitpid(pid, 0)


def _kill(pid: int, number: int, *, group: bool) -> None:
    # It may have ended; some systems refuse a group of zombies.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, number)


def main() -> None:
    """Serves on the socket whose descriptor is the first argument."""
    # The first output stays open as long as this process, and no longer: see `backends.local`.
    os.set_inheritable(os.dup(1), False)
    os.dup2(2, 1)
    parent = os.getppid()
    die_with_parent(signal.SIGKILL)
    sock = socket.socket(fileno=int(sys.argv[1]))
    if os.getppid() != parent:
        return
    try:
        setup, _ = _receive(sock)
        sys.path.extend(path for path in setup["paths"] if path not in sys.path)
        why = preload(setup["preload"])
        write_frame(sock, json.dumps({"ready": why is None, "why": why}).encode())
    except (EOFError, OSError):
        return  # the daemon is gone already
    if why is not None:
        return
    server = Server(sock, rank.serve)
    die_with_parent(0)  # from here on it must outlive the daemon to kill its children
    gc.collect()
    gc.freeze()
    server.serve()
    remove(setup["shelf"])  # a daemon that was killed could not


if __name__ == "__main__":
    main()

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The server of warm_start.py: imports JAX and Flax once, then forks for each program.

The argument is the number of a socket. A request is one packet with four files: the request as
JSON, and the program's standard streams. Answers are its process id, then its status and the CPU
seconds of this process and of all programs so far. The end of the socket is the end of the server.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import sys
import types
import warnings
from typing import Any

# As far as they are installed. JAX imports the last one at its first compilation.
IMPORTS = ("numpy", "jax", "jax.numpy", "flax.nnx", "optax", "jaxlib.mlir.dialects.mhlo")


def serve(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Forks for each request; returns in the forks alone: a request and the standard streams."""
    inherited = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's is for pytest, which ends this one
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        message, files, *_ = socket.recv_fds(channel, 16, 4)
        if not message:
            os._exit(0)
        file, *streams = files
        with open(file, encoding="utf-8") as opened:
            request = json.load(opened)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, inherited)
            for own in (channel, woken, waker):
                own.close()
            return request, streams
        for stream in streams:
            os.close(stream)
        channel.send(json.dumps([pid]).encode())
        status = _wait(pid, channel, woken)
        channel.send(json.dumps([status, sum(os.times()[:4])]).encode())


def _wait(pid: int, channel: socket.socket, woken: socket.socket) -> int:
    """The status of a program. Ends it, and this process, with the other end of the socket."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        ready, _, _ = select.select([channel, woken], [], [])
        if channel in ready:  # nobody sends while a program runs
            os.kill(pid, signal.SIGKILL)
            os._exit(0)
        woken.recv(1000)


class Start:
    """The state of an interpreter at its start, which the imports then change.

    `restore` gives a program this state, together with what the imports added.
    """

    def __init__(self) -> None:
        self.filters = list(warnings.filters)
        self.path = sys.path[0 if sys.flags.safe_path else 1 :]
        before = dict(os.environ)
        for name in IMPORTS:
            if importlib.util.find_spec(name.partition(".")[0]):
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # neither a collection nor the end of a fork then visits, so copies, these
        self.added = {k: v for k, v in os.environ.items() if before.get(k) != v}
        self.ignored = [entry for entry in warnings.filters if entry not in self.filters]

    def restore(self, request: dict[str, Any]) -> None:
        """Sets what a command line and its environment set."""
        variables = request["env"]
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(self.added | variables)
        sys.dont_write_bytecode = bool(variables.get("PYTHONDONTWRITEBYTECODE"))
        self._restore_path(request)
        options = list(filter(None, variables.get("PYTHONWARNINGS", "").split(",")))
        self._restore_filters(options + request["filters"])
        if jax := sys.modules.get("jax"):
            for name, value in request["jax"].items():
                jax.config.update(name, value)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed()

    def _restore_path(self, request: dict[str, Any]) -> None:
        kind, target = request["kind"], request["target"]
        folder = {"-c": "", "-m": os.getcwd()}.get(kind, os.path.dirname(os.path.realpath(target)))
        own = request["env"].get("PYTHONPATH")
        entries = [os.path.abspath(entry) for entry in own.split(os.pathsep)] if own else []
        sys.path[:] = [*([] if sys.flags.safe_path else [folder]), *entries, *self.path]
        sys.argv[:] = [target if kind == "file" else kind, *request["arguments"]]
        options = [part for entry in request["filters"] for part in ("-W", entry)]
        line = [target] if kind == "file" else [kind, target]
        sys.orig_argv[:] = [sys.executable, *options, *line, *request["arguments"]]

    def _restore_filters(self, options: list[str]) -> None:
        with warnings.catch_warnings():  # entering and leaving drop what Python has cached
            pass
        warnings.filters[:] = self.filters
        sys.warnoptions[:] = options
        warnings._processoptions(options)  # as Python's own start does
        for entry in reversed(self.ignored):
            warnings.filters.insert(0, entry)
        with warnings.catch_warnings():
            pass


def execute(request: dict[str, Any]) -> None:
    """Runs the program as `__main__`. Its exceptions are the interpreter's to handle."""
    kind, target = request["kind"], request["target"]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__builtins__ = builtins
    if kind == "-m":
        runpy._run_module_as_main(target)
        return
    name = "<string>"
    if kind == "file":
        name = main.__file__ = os.path.abspath(target)
        main.__cached__ = None
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", name)
        with open(name, "rb") as file:
            target = file.read()
    exec(compile(target, name, "exec", dont_inherit=True), main.__dict__)


def hide_own_frames() -> None:
    """Lets a traceback begin with the program."""
    shown = sys.excepthook

    def hook(kind: type, error: BaseException, trace: types.TracebackType | None) -> None:
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        shown(kind, error.with_traceback(trace), trace)

    sys.excepthook = hook


if __name__ == "__main__":
    _start = Start()
    _request, _streams = serve(socket.socket(fileno=int(sys.argv[1])))
    for _target, _stream in enumerate(_streams):
        os.dup2(_stream, _target)
        os.close(_stream)
    _own = sys.modules["__main__"]  # its variables outlive the program
    try:
        _start.restore(_request)
        execute(_request)
    except BaseException:
        hide_own_frames()
        raise

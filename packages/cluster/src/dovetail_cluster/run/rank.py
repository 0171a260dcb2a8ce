# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The process of a rank or a task, from the fork to its exit."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import socket
import sys
import threading
import traceback
from typing import Any, NoReturn

from dovetail_cluster.context import Context, Home, pump
from dovetail_cluster.events import PORT_TAKEN, Commit, Propose, Raised, Returned
from dovetail_cluster.run.messages import Job, Leave, Stall, Task, TaskDone
from dovetail_cluster.wire import Link, read_frame, split

# JAX would abort the rank that a debugger or a signal has stopped, and blame the others. The
# controller knows of every death at once, and of a stop by its deadline.
_HEARTBEAT_S = 3600
_JOIN_S = 120


def serve(sock: socket.socket) -> NoReturn:
    """Does what the first message on the socket asks for, and exits.

    The exit is immediate: JAX's own teardown waits for the other ranks, and can abort a run that
    is finished.
    """
    first = pickle.loads(read_frame(sock))
    link, left = Link(sock), threading.Event()
    if isinstance(first, Task):
        link.start(lambda message: None, lambda why: os._exit(1))
        link.send(_call_task(first))
        link.close(flush_s=60.0)
    else:
        _run(first, link, left)
        left.wait()
    os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the user's function has closed it
            stream.flush()


def _mute() -> None:
    """Drops all further output: JAX's complaints about other ranks that exit a moment earlier."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)


def _call_task(task: Task) -> TaskDone:
    import cloudpickle

    try:
        function, args = pickle.loads(task.data)
        value = cloudpickle.dumps(function(*args))
    except BaseException as error:
        _flush()
        return TaskDone(task.number, None, traceback.format_exc(), pickled(error))
    _flush()
    return TaskDone(task.number, value, "", None)


def _run(job: Job, link: Link, left: threading.Event) -> None:
    home = Home(job.shelf, job.local, job.begun_s)
    context = Context(job.rank, job.hosts, job.generation, host=job.host, home=home)
    context._joined = False

    def receive(message: Any) -> None:
        match message:
            case Propose():
                link.send(context._propose(message))
            case Commit():
                context._commit(message)
            case Stall(seconds=seconds):
                context._stall_s = seconds
            case Leave():
                left.set()

    link.start(receive, lambda why: os._exit(1))
    ended = threading.Event()
    threading.Thread(
        target=pump, args=(context, link.send, ended), daemon=True, name="dovetail-pump"
    ).start()
    try:
        if job.rank == 0 and not _port_is_free(job.address):
            os._exit(PORT_TAKEN)
        _join(job)
    except Exception as error:
        link.send(_raised(job, error))
        return
    context._joined = True
    link.send(context._state())
    report = _call(job, context)
    _flush()
    _mute()
    ended.set()
    link.send(context._state())
    link.send(report)


def _port_is_free(address: str) -> bool:
    """Tests whether the coordinator can listen: jaxlib 0.12.0 dies of SIGSEGV if it cannot."""
    host, port = split(address)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # the daemon holds it so
        try:
            sock.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def _join(job: Job) -> None:
    import jax

    from dovetail_cluster._compat import bind_gloo

    if jax.config.values["jax_cpu_collectives_implementation"] in (None, "none"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    bind_gloo(job.local)
    jax.distributed.initialize(
        job.address,
        job.hosts,
        job.rank,
        cluster_detection_method="deactivate",
        initialization_timeout=_JOIN_S,
        heartbeat_timeout_seconds=_HEARTBEAT_S,
        coordinator_bind_address=job.address,
    )
    if jax.process_count() != job.hosts:
        raise RuntimeError(
            f"the platform must join all hosts into one program, got jax.process_count()="
            f"{jax.process_count()} on {job.hosts} hosts ({jax.default_backend()}); install a "
            f"jaxlib for the accelerator, or set JAX_PLATFORMS"
        )


def _call(job: Job, context: Context) -> Returned | Raised:
    import cloudpickle

    try:
        function, args = pickle.loads(job.program)
        value = cloudpickle.dumps(function(context, *args))
    except BaseException as error:
        return _raised(job, error)
    return Returned(job.host, job.generation, value, context._stopped)


def _raised(job: Job, error: BaseException) -> Raised:
    (kind, message), *before = _chain(error)
    text, data = "".join(traceback.format_exception(error)), pickled(error)
    final = bool(getattr(error, "final", False))  # any class of the user may have it
    return Raised(
        job.host, job.generation, kind, message, text, data, before=tuple(before), final=final
    )


def _chain(error: BaseException) -> list[tuple[str, str]]:
    """Returns (kind, message) of the exception and of those during which it was raised."""
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in chain:
        chain.append(following)
        hidden = following.__suppress_context__
        following = following.__cause__ or (None if hidden else following.__context__)
    return [(type(each).__qualname__, str(each)) for each in chain]


def pickled(error: BaseException) -> bytes | None:
    """Pickles an exception with its causes. Returns None if it cannot be pickled, or read again."""
    import cloudpickle

    try:
        data = cloudpickle.dumps(error)
        pickle.loads(data)
    except Exception:  # any class may fail in any way in its own methods
        return None
    return data

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Several JAX processes on one machine, with collectives by gloo.

They are forked before JAX starts its threads, so that all of them cost one import.
"""

import os
import socket
import sys
import traceback
from collections.abc import Callable

import jax


def start(work: Callable[[int], None], *, count: int = 2) -> None:
    """Runs `work(I)` in each process I of `count`; raises if one fails."""
    sys.stdout.flush()
    with socket.socket() as held:
        # Nobody else gets the port meanwhile; the coordinator may, since it sets the option too.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("localhost", 0))
        port = held.getsockname()[1]
        children = [_fork(lambda i=i: _join(work, i, count, port)) for i in range(count)]
        ended = [os.waitpid(child, 0)[1] for child in children]
    assert ended == [0] * count, ended


def _join(work: Callable[[int], None], process: int, count: int, port: int) -> None:
    # Gloo tells of its connections on descriptor 1, in the middle of lines that Python prints.
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    if count > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{port}", count, process)
    work(process)
    if count > 1:
        jax.distributed.shutdown()


def _fork(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

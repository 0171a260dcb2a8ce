# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Several processes as one run: joining them, agreeing on small values, losing one of them.

Every process calls `fit` with its own rows of each batch. Process 0 writes: scalars, traces and
records. A lost process ends the run on all others, since their shards are not the whole state. A
new launch resumes it from its last save, on any number of processes.
"""

import atexit
import contextlib
import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import AbstractMesh, Mesh, Sharding

from dovetail_train._keys import is_key, key_data, typed
from dovetail_train.logs.sinks import Sink
from dovetail_train.mesh.mesh import process_shard
from dovetail_train.mesh.peers import LostProcessError, Watch, explained

_log = logging.getLogger(__name__)
# A value takes a multiple of these bytes, so that most values are gathered by one compiled program.
_BLOCK_BYTES = 1024
# Between two signs of process 0 that it still works: each is a collective, which has a limit.
ROUND_S = 5.0
# Errors of JAX that speak of another process. An allocation that failed, for example, is our own.
_OF_OTHERS = re.compile(
    r"gloo|nccl|heartbeat|barrier|coordinat|connection|peer|UNAVAILABLE|DEADLINE_EXCEEDED", re.I
)
_GLOO = re.compile(r"[A-Z_]+: Gloo\b")  # the text of a ValueError, when a result is read
_watches: list[Watch] = []  # at most one: JAX joins a process to others once


def initialize_distributed(
    coordinator: str | None = None,
    *,
    processes: int | None = None,
    process: int | None = None,
    heartbeat_s: int = 10,
) -> None:
    """Joins this process to the others of a run. Call it before any other use of JAX.

    A call of `jax.distributed.initialize` that survives the loss of a process: `fit` then raises a
    RuntimeError, about `heartbeat_s` later. By default JAX ends every process with a C++ stack
    after 100 s. It still does so if process 0 is lost, because the coordinator is part of it.

    Args:
        coordinator: "HOST:PORT" of process 0; it opens the port. None: JAX detects the cluster
            (Slurm, Open MPI, Kubernetes, Cloud TPU) and all three values.
        processes: Number of processes; needed with `coordinator`.
        process: Index of this process, from 0 on; needed with `coordinator`.
        heartbeat_s: Seconds without a sign of life after which a process counts as lost.

    Raises:
        ValueError: Only some of the three values are given, one is out of range, or JAX detects no
            cluster.
        RuntimeError: The process is joined already or has used JAX before, or the coordinator does
            not answer within 5 minutes.

    Example:

        In the second of two programs, before anything else::

            initialize_distributed("10.0.0.1:9911", processes=2, process=1)
    """
    _check_address(coordinator, processes, process)
    if heartbeat_s < 1:
        raise ValueError(
            f"heartbeat_s must be at least 1 second, got heartbeat_s={heartbeat_s}; write "
            f"heartbeat_s=10"
        )
    if jax.distributed.is_initialized():
        raise RuntimeError(
            f"a process must be joined to the others once, got another call with "
            f"coordinator={coordinator!r}; remove this call, or jax.distributed.initialize before "
            f"it"
        )
    jax.config.update("jax_enable_recoverability", True)
    if jax.config.values["jax_cpu_collectives_implementation"] in (None, "none"):
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    watch = Watch(heartbeat_s=float(heartbeat_s))
    atexit.register(watch.join)  # runs after JAX's shutdown, which is registered later
    try:
        jax.distributed.initialize(
            coordinator, processes, process, heartbeat_timeout_seconds=heartbeat_s
        )
    except (ValueError, RuntimeError) as error:
        raise _explained(error, coordinator) from error
    if jax.process_count() > 1:
        watch.start()
        _watches[:] = [watch]


def _check_address(coordinator: str | None, processes: int | None, process: int | None) -> None:
    given = f"coordinator={coordinator!r}, processes={processes}, process={process}"
    example = 'initialize_distributed("10.0.0.1:9911", processes=2, process=0)'
    values = (coordinator, processes, process)
    if None in values and any(value is not None for value in values):
        raise ValueError(
            f"coordinator, processes and process must be given together, got {given}; write "
            f"{example}, or none of them on a cluster that JAX detects"
        )
    if coordinator is None or processes is None or process is None:
        return
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise ValueError(
            f"coordinator must be HOST:PORT of process 0, got coordinator={coordinator!r}; write "
            f"{example}"
        )
    if processes < 1 or not 0 <= process < processes:
        raise ValueError(
            f"process must be from 0 to processes - 1, got processes={processes}, "
            f"process={process}; write {example}, and process=1 in the second one"
        )


def _explained(error: Exception, coordinator: str | None) -> Exception:
    if isinstance(error, ValueError) and coordinator is None:
        return ValueError(
            f"a process without coordinator must be started by a cluster that JAX detects (Slurm, "
            f"Open MPI, Kubernetes, Cloud TPU), got none ({error}); write "
            f'initialize_distributed("10.0.0.1:9911", processes=2, process=0)'
        )
    if "must be called before" in str(error):
        return RuntimeError(
            f"a process must be joined before it uses JAX, got a call after it ({error}); call "
            f"initialize_distributed first in the program"
        )
    return RuntimeError(
        f"all processes must reach the coordinator, got coordinator={coordinator!r} and {error}; "
        f"check the address, and that process 0 runs and its port is open"
    )


@contextlib.contextmanager
def watch_processes() -> Iterator[None]:
    """Raises RuntimeError in the block if another process of the run is lost.

    `fit` uses it. Put it around all other work of several processes, such as placing parameters
    before `fit`, and an export after it. It needs the main thread and `initialize_distributed`; all
    processes must enter and leave it together. Nothing happens with one process. If the main
    thread cannot be interrupted, the error is logged after `heartbeat_s` and the program ends.

    Raises:
        RuntimeError: A process ended or is silent. The message has what JAX said.
    """
    if jax.process_count() == 1:
        yield
        return
    watch = next(iter(_watches), None)
    try:
        with contextlib.nullcontext() if watch is None else watch.interrupting():
            yield
            gather(None)  # else a process may end while another is still in the block
    except Exception as error:
        said = _of_others(error)
        if said is None or isinstance(error, _LostError):
            raise
        raise _LostError(explained(said.strip().splitlines()[0][:300])) from error


class _LostError(RuntimeError):
    """The message is complete: an outer block leaves it as it is."""


def _of_others(error: BaseException | None) -> str | None:
    """Returns the words of JAX about another process, from an error or the errors before it."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        said = str(error)
        is_of_jax = isinstance(error, jax.errors.JaxRuntimeError) or _GLOO.match(said)
        if isinstance(error, LostProcessError) or (is_of_jax and _OF_OTHERS.search(said)):
            return said
        error = error.__cause__ or error.__context__
    return None


def gather(value: Any) -> list[Any]:
    """Returns the JSON value of each process, in their order, on every process. A collective."""
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    with jax.transfer_guard("allow"):
        sizes = multihost_utils.process_allgather(np.int32(text.size)).reshape(-1)
        padded = np.zeros(-(-int(sizes.max()) // _BLOCK_BYTES) * _BLOCK_BYTES, np.uint8)
        padded[: text.size] = text
        rows = multihost_utils.process_allgather(padded).reshape(len(sizes), -1)
    return [json.loads(bytes(row[:size])) for row, size in zip(rows, sizes, strict=True)]


def first(value: Any) -> Any:
    """Returns the JSON value of process 0 on every process. A collective."""
    return gather(value if jax.process_index() == 0 else None)[0]


def on_first(work: Callable[[], Any]) -> Any:
    """Returns the result of `work`, which runs on process 0 while the others wait.

    Every process calls it. The work may take longer than a collective may wait.

    Args:
        work: Returns a JSON value. With several processes it runs in a thread.

    Raises:
        Exception: The error of `work`, on process 0.
        RuntimeError: The same message, on the others, with the attribute `exit_code` of the error.

    Example:

        >>> from dovetail_train import on_first
        >>> on_first(lambda: len("written once"))
        12
    """
    if jax.process_count() == 1:
        return work()
    if jax.process_index() > 0:
        while (outcome := first(None)) is None:
            pass
        if "error" in outcome:
            raise _FirstError(outcome["error"], outcome["exit_code"])
        return outcome["result"]
    result, failures = [], []

    def run() -> None:
        try:
            result.append(work())
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="dovetail-first", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(timeout=ROUND_S)
        if thread.is_alive():
            first(None)
    if failures:
        notes = "\n".join([str(failures[0]), *getattr(failures[0], "__notes__", ())])
        first({"error": notes, "exit_code": getattr(failures[0], "exit_code", None)})
        raise failures[0]
    return first({"result": result[0]})["result"]


class _FirstError(RuntimeError):
    """The failure of process 0, with its exit code if it has one."""

    def __init__(self, message: str, exit_code: int | None) -> None:
        super().__init__(f"process 0 failed: {message}")
        if exit_code is not None:
            self.exit_code = exit_code


def check_shared(file: str | Path) -> None:
    """Raises RuntimeError on every process unless all of them read the same text in `file`.

    A collective: call it before several processes write to one directory.
    """
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        text = None
    every = gather(text)
    blind = [i for i, other in enumerate(every) if other != every[0]]
    if blind:
        raise RuntimeError(
            f"all processes must share a directory, got {str(path.parent)!r} without the "
            f"{path.name} of process 0 in processes {blind}: take a directory of a file system "
            "that all of them mount"
        )


def gather_module(module: nnx.Module) -> Any:
    """Returns a module with whole arrays on the first device of process 0. A collective.

    The others get None. With one process it is the module itself.

    Args:
        module: A module whose arrays may lie on devices of all processes.
    """
    if jax.process_count() == 1:
        return module
    graph, state = nnx.split(module)
    device, is_first = jax.local_devices()[0], jax.process_index() == 0

    def leaf(x: Any) -> Any:
        whole = multihost_utils.process_allgather(key_data(x), tiled=True)
        return jax.device_put(typed(whole, x), device) if is_first else None

    whole = jax.tree.map(leaf, state)
    return nnx.merge(graph, whole) if is_first else None


def receiving(sinks: Sequence[Sink]) -> list[Sink]:
    """Returns the sinks that this process writes to: all on process 0, else those of everywhere."""
    is_first = jax.process_index() == 0
    # A sink of another library need not have the attribute.
    return [sink for sink in sinks if is_first or getattr(sink, "everywhere", False)]


class Compared:
    """Places batches, and compares the rows of the first one over the processes.

    Each process passes its own rows. The whole batch on every process would be trained on twice or
    more, in silence.
    """

    def __init__(self, place: Callable[[Any], Any], mesh: Mesh | AbstractMesh) -> None:
        self._place, self._mesh = place, mesh
        self._is_compared = jax.process_count() == 1

    def __call__(self, batch: Mapping[str, Any]) -> Any:
        placed = self._place(batch)
        if not self._is_compared:
            self._is_compared = True
            self._compare(batch)
        return placed

    def _compare(self, batch: Mapping[str, Any]) -> None:
        share, shares = process_shard(self._mesh)
        every = gather([share, _digest(batch)])
        equal = [i for i, (other, text) in enumerate(every) if text and text == every[0][1]]
        if len({every[i][0] for i in equal}) > 1 and jax.process_index() == 0:
            _log.warning(
                "each process must pass its own rows of a batch, got identical rows in processes "
                "%s: the global batch holds them more than once; write batches(..., "
                "shard=process_shard(mesh)), here shard=(jax.process_index(), %d)",
                equal,
                shares,
            )


def put(x: Any, sharding: Sharding, *, may_alias: bool | None = None) -> jax.Array:
    """Returns `jax.device_put(x, sharding)`, for typed keys and a mesh of several processes too.

    `jax.device_put` refuses typed keys on a mesh with devices of other processes, and arrays that
    are committed to a device of this one. So the data of keys are placed, and the values of arrays.

    Args:
        x: An array; each process passes the same values, or an array on devices of all.
        sharding: Where it is to lie.
        may_alias: False for a copy, as of `jax.device_put`.
    """
    if not sharding.is_fully_addressable:
        if isinstance(x, jax.Array) and is_key(x):
            return typed(put(key_data(x), sharding, may_alias=may_alias), x)
        if isinstance(x, jax.Array) and x.is_fully_addressable:
            x = jax.device_get(x)
    return jax.device_put(x, sharding, may_alias=may_alias)


def _digest(batch: Mapping[str, Any]) -> str:
    """Returns a digest of the rows of this process; empty for arrays placed by the caller."""
    digest = hashlib.sha256()
    for name in sorted(batch):
        if isinstance(batch[name], jax.Array) and not batch[name].is_fully_addressable:
            return ""
        rows = np.ascontiguousarray(key_data(batch[name]))
        digest.update(f"{name}{rows.dtype}{rows.shape}".encode() + rows.tobytes())
    return digest.hexdigest()

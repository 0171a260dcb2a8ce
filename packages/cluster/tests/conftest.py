# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by all tests: types checked at run time, local clusters, a job to injure."""

import contextlib
import os
import pathlib
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import jaxtyping
import pytest

# Before the first import of the package, so that every annotation of it is checked.
jaxtyping.install_import_hook("dovetail_cluster", "beartype.beartype")


@pytest.fixture
def job(tmp_path: pathlib.Path) -> "Job":
    """A training function with checkpoints of its own, and the test's hold on it."""
    return Job(tmp_path)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three local hosts, for all tests of a module."""
    from dovetail_cluster import Cluster

    with marked_processes() as left, Cluster.local(hosts=3) as three:
        yield three
    assert left() == []


@pytest.fixture
def marked() -> Iterator[Callable[[], list[int]]]:
    """Finds the processes that the test has started and that are alive."""
    with marked_processes() as left:
        yield left


@pytest.fixture(scope="module")
def module_marked() -> Iterator[Callable[[], list[int]]]:
    """The same for a module."""
    with marked_processes() as left:
        yield left


@pytest.fixture
def free_port() -> int:
    """A port that stays free: below those that a system hands out by itself."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextlib.contextmanager
def marked_processes() -> Iterator[Callable[[], list[int]]]:
    """Marks processes that start inside by a variable. Gives a function that finds those alive."""
    mark = f"DOVETAIL_CLUSTER_MARK_{uuid.uuid4().hex}"

    def left() -> list[int]:
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        return [pid for pid in pids if pid != os.getpid() and is_marked(pid)]

    def is_marked(pid: int) -> bool:
        try:
            return mark.encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:  # it has ended, or is another user's
            return False

    os.environ[mark] = "1"
    try:
        yield left
    finally:
        del os.environ[mark]


class Job:
    """A function that sums constant rows on all hosts, step by step, until it may end.

    Each rank logs a line per step: generation, rank, hosts, step. Rank 0 saves each step. The total
    after a step does not depend on how the job came there.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self._thread: threading.Thread | None = None
        self._outcome: Any = None

    def start(self, cluster: Any, **elastic: Any) -> None:
        """Runs the function in a thread."""
        from dovetail_cluster import Elastic

        def call() -> None:
            try:
                self._outcome = cluster.run(self.function(), elastic=Elastic(**elastic))
            except BaseException as error:
                self._outcome = error

        self._thread = threading.Thread(target=call)
        self._thread.start()

    def wait(
        self, *, generation: int = 0, step: int = 1, rank: int = 0, hosts: int | None = None
    ) -> int:
        """Waits for a step of a rank in a generation at least. Returns the generation."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            for line in self.log():
                old, who, count, at = line
                if old >= generation and who == rank and at >= step and hosts in (None, count):
                    return old
            if self._thread is not None and not self._thread.is_alive():
                raise AssertionError(f"the job has ended: {self._outcome!r}")
            time.sleep(0.02)
        raise AssertionError(f"no such step within 120 s: {self.log()[-9:]}")

    def log(self) -> list[tuple[int, ...]]:
        """The lines so far: generation, rank, hosts, step."""
        file = self.folder / "log"
        lines = file.read_text().splitlines() if file.exists() else []
        return [tuple(map(int, line.split())) for line in lines]

    def end(self) -> Any:
        """Lets the job end. Returns its result, whose total is checked, or its error."""
        (self.folder / "end").touch()
        assert self._thread is not None
        self._thread.join(120)
        assert not self._thread.is_alive(), "the job does not end"
        generations = [line[0] for line in self.log()]
        assert generations == sorted(generations), "two generations at a time"
        if isinstance(self._outcome, BaseException):
            return self._outcome
        for step, total in self._outcome.values:
            assert total == sum(12 * (s % 5) + 66 for s in range(step))
        return self._outcome

    def function(self) -> Callable[[Any], tuple[int, float]]:
        folder = str(self.folder)

        def train(ctx: Any) -> tuple[int, float]:
            import json
            import os
            import time

            import jax
            import jax.numpy as jnp
            import numpy as np
            from jax.sharding import NamedSharding, PartitionSpec

            sharding = NamedSharding(ctx.mesh(data=-1), PartitionSpec("data"))
            rows = np.arange(12.0, dtype=np.float32)
            add = jax.jit(lambda x, s: (jnp.sum(x[:, 0] + s), jnp.max(x[:, 1])))
            saved = os.path.join(folder, "saved")
            step, total, ended = 0, 0.0, False
            if os.path.exists(saved):
                with open(saved) as file:
                    step, total = json.load(file)
            while not ended:
                may_end = float(ctx.rank == 0 and os.path.exists(os.path.join(folder, "end")))
                both = np.stack([rows, np.full(12, may_end, np.float32)], axis=1)
                batch = jax.make_array_from_callback((12, 2), sharding, both.__getitem__)
                added, end = add(batch, np.float32(step % 5))
                total, ended = total + float(added), float(end) > 0
                step += 1
                if ctx.rank == 0:
                    with open(saved + ".new", "w") as file:
                        json.dump([step, total], file)
                    os.replace(saved + ".new", saved)
                ctx.progress.write(step, {"total": total})
                with open(os.path.join(folder, "log"), "a") as file:
                    file.write(f"{ctx.generation} {ctx.rank} {ctx.hosts} {step}\n")
                if not ended and ctx.stop(step):
                    break
                time.sleep(0.02)
            return step, total

        return train

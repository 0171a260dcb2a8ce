# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Clusters: the user's side."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from dovetail_cluster import _elsewhere
from dovetail_cluster.backends.base import Backend
from dovetail_cluster.backends.env import Env
from dovetail_cluster.backends.local import Local
from dovetail_cluster.backends.ray import Ray
from dovetail_cluster.backends.slurm import Slurm
from dovetail_cluster.elastic import Elastic
from dovetail_cluster.events import Resized
from dovetail_cluster.faults import Host
from dovetail_cluster.run.capture import dump
from dovetail_cluster.run.driver import Driver, call_on_all
from dovetail_cluster.run.fleet import Fleet

Logs = Literal["all", "first", "none"]
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Result:
    """Result of a job.

    Attributes:
        value: Value of rank 0.
        values: Values by rank.
        generations: Number of calls of the function on all hosts.
        states: Seconds in each state, such as "running" and "restarting". They sum to wall time.
        timeline: The states in order, as (state, begin, end) in seconds of `time.monotonic()`.
    """

    values: tuple[Any, ...]
    generations: int
    states: Mapping[str, float]
    timeline: Sequence[tuple[str, float, float]]

    @property
    def value(self) -> Any:
        return self.values[0]


@_elsewhere.cluster
class Cluster:
    """Hosts to run functions on. Leaving the block ends all their processes.

    Each host has a daemon and a server with jax imported. The first `run` waits for them; later
    ones start within a fraction of a second.

    Args:
        backend: Where hosts come from, such as `Local`.
        preload: Modules for every host to import once, before the first call, as ("optax",).
            Their import must not touch devices.
        logs: Ranks whose output is copied to stderr, with a prefix such as "[rank 1] ".

    Raises:
        ValueError: `logs` is unknown, or the key in the environment is malformed.

    Example:

        >>> with Cluster.local(hosts=2) as cluster:
        ...     cluster.run(lambda ctx: ctx.rank).values
        (0, 1)
    """

    def __init__(
        self, backend: Backend, *, preload: Sequence[str] = (), logs: Logs = "all"
    ) -> None:
        if logs not in ("all", "first", "none"):
            raise ValueError(
                f"logs must be 'all', 'first' or 'none', got {logs!r}; write logs='first'"
            )
        if isinstance(preload, str):
            raise ValueError(
                f"preload must be a sequence of module names, got {preload!r}; write "
                f"preload=({preload!r},)"
            )
        self._busy = threading.Lock()
        self._hosts: int | None = None
        self._open = True
        self._driver: Driver | None = None
        self._backend = backend
        # A script that follows host 0 controls no hosts itself.
        self._leads = not isinstance(backend, Env) or backend.leads
        if self._leads:
            self._fleet = Fleet(backend, preload=tuple(preload), logs=logs)

    @classmethod
    @_elsewhere.local
    def local(
        cls,
        *,
        hosts: int,
        devices_per_host: int | None = 1,
        preload: Sequence[str] = (),
        logs: Logs = "all",
    ) -> Cluster:
        """Makes a cluster of processes on this machine.

        Args:
            hosts: Number of hosts.
            devices_per_host: CPU devices of each. None: one host with all GPUs or TPUs of this
                machine.
            preload: See `Cluster`.
            logs: See `Cluster`.
        """
        return cls(Local(hosts, devices_per_host=devices_per_host), preload=preload, logs=logs)

    @classmethod
    def ray(
        cls,
        address: str | None = None,
        *,
        hosts: int | None = None,
        resources: Mapping[str, int | float] | None = None,
        preload: Sequence[str] = (),
        logs: Logs = "all",
    ) -> Cluster:
        """Makes a cluster of the nodes of a Ray cluster. Needs `dovetail-cluster[ray]`.

        Args:
            address: See `Ray`.
            hosts: See `Ray`.
            resources: See `Ray`.
            preload: See `Cluster`.
            logs: See `Cluster`.
        """
        return cls(Ray(address, hosts, resources), preload=preload, logs=logs)

    @classmethod
    def slurm(cls, *, preload: Sequence[str] = (), logs: Logs = "all") -> Cluster:
        """Makes a cluster of the nodes of the Slurm allocation in which this program runs.

        Args:
            preload: See `Cluster`.
            logs: See `Cluster`.
        """
        return cls(Slurm(), preload=preload, logs=logs)

    @classmethod
    def env(
        cls, *, wait_s: float = 600.0, preload: Sequence[str] = (), logs: Logs = "all"
    ) -> Cluster:
        """Makes a cluster of the hosts on which a launcher has started this same script.

        Host 0 controls. On each host the script makes the same calls of `run` and `map`, and they
        return the same value or raise the same error.

        Args:
            wait_s: Seconds that a host looks for host 0.
            preload: See `Cluster`.
            logs: See `Cluster`. They are copied to host 0.
        """
        return cls(Env(wait_s=wait_s), preload=preload, logs=logs)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @_elsewhere.run
    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        elastic: Elastic | None = None,
        watch: Callable[[str, float], None] | None = None,
    ) -> Result:
        """Runs `function(context, *args)` on all hosts as one JAX program.

        After a failure the function is called again on all hosts: it must go on from its own
        checkpoints. See `Context` for its side.

        Args:
            function: The function, picklable by cloudpickle.
            *args: Its further arguments.
            elastic: How the job meets failures. Default: `Elastic()`.
            watch: Called here with each new state of the job and its begin, in seconds of
                `time.monotonic()`. An exception of it ends the job and is raised.

        Returns:
            Values by rank, and how the time was spent.

        Raises:
            TypeError: The function captures something unpicklable.
            ValueError: An allowed number of hosts is above that of the cluster.
            RankError: The function raised.
            StallError: The job stood still too often.
            HostsError: Too few hosts were healthy for too long.
            RuntimeError: The cluster is closed, or another call is in progress.
        """
        elastic = Elastic() if elastic is None else elastic
        with self._turn():
            return self._together(lambda: self._run(function, args, elastic, watch))

    def _run(
        self,
        function: Callable[..., Any],
        args: Any,
        elastic: Elastic,
        watch: Callable[[str, float], None] | None,
    ) -> Result:
        if elastic.hosts is not None and min(elastic.hosts) > self._fleet.count:
            raise ValueError(
                f"one allowed number of hosts must be at most {self._fleet.count}, got "
                f"hosts={elastic.hosts}; write Elastic(hosts=({self._fleet.count},))"
            )
        program = dump(function, args)
        driver = Driver(self._fleet, elastic, program, hosts=self._hosts, watch=watch)
        self._driver = driver
        try:
            values = tuple(pickle.loads(value) for value in driver.run())
        finally:
            self._driver = None
        timeline = driver.controller.timeline
        return Result(values, driver.generations, timeline.seconds(), timeline.spans)

    def map(self, function: Callable[..., Any], *args: Any, wait_s: float = 300.0) -> list[Any]:
        """Calls `function(*args)` once on each host, as separate programs and without restarts.

        Args:
            function: The function, picklable by cloudpickle.
            *args: Its arguments.
            wait_s: Seconds to wait for all hosts.

        Returns:
            Values by host.

        Raises:
            TypeError: The function captures something unpicklable.
            RankError: The function raised on a host, named in the message with the traceback.
            HostsError: A host did not join in time.
            RuntimeError: The cluster is closed, or another call is in progress.
        """
        with self._turn():
            return self._together(
                lambda: call_on_all(self._fleet, dump(function, args), wait_s=wait_s)
            )

    def resize(self, hosts: int | None) -> None:
        """Asks for so many hosts from now on, in this run and later ones. Returns at once.

        Args:
            hosts: Number of hosts, 0 to suspend the run. None: the most allowed by `Elastic`.

        Raises:
            ValueError: The cluster has fewer hosts.
        """
        self._check_leads()
        if hosts is not None and not 0 <= hosts <= self._fleet.count:
            raise ValueError(
                f"hosts must be from 0 to {self._fleet.count}, got hosts={hosts}; write "
                f"resize({self._fleet.count})"
            )
        self._hosts = hosts
        self._fleet.post(Resized(hosts))

    @property
    def state(self) -> str:
        """State of the run in progress, such as "running" or "suspended"; "idle" if there is none.

        `Result.states` has all of them.
        """
        driver = self._driver
        return "idle" if driver is None else driver.controller.state

    def host(self, place: int) -> Host:
        """Returns a host, to inject faults.

        Raises:
            ValueError: The cluster has fewer hosts.
        """
        self._check_leads()
        if not 0 <= place < self._fleet.count:
            raise ValueError(
                f"a host must be from 0 to {self._fleet.count - 1}, got {place}; write host(0)"
            )
        return Host(self._fleet, place)

    def close(self) -> None:
        """Ends all processes of the cluster, and gives its hosts back."""
        if self._open:
            self._open = False
            (self._fleet if self._leads else self._backend).close()

    def _together(self, call: Callable[[], _T]) -> _T:
        return self._backend.together(call) if isinstance(self._backend, Env) else call()

    def _check_leads(self) -> None:
        if not self._leads:
            raise RuntimeError(
                "only host 0 controls a cluster from the environment, got this call on another "
                "host; write it under `if os.environ['DOVETAIL_CLUSTER_HOST'] == '0':`"
            )

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._open:
            raise RuntimeError(
                "a cluster must be open to run, got a closed one; make another Cluster"
            )
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(
                "a cluster must run one function at a time, got a second call; wait for the first, "
                "or make another Cluster"
            )
        try:
            yield
        finally:
            self._busy.release()

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Hosts of a Ray cluster. One actor on each Ray node starts the daemon and waits for it.

Ray only places the daemons. They get the environment of the node instead of the one that Ray builds
for its workers, so that JAX sees all devices of the node (ray-project/ray#58322).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from dovetail_cluster.backends.process import Process

# Variables that Ray overwrites in its workers, for hardware that JAX runs on.
_OVERWRITTEN = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ONEAPI_DEVICE_SELECTOR",
    "TPU_VISIBLE_CHIPS",
    "TPU_CHIPS_PER_HOST_BOUNDS",
    "TPU_HOST_BOUNDS",
    "OMP_NUM_THREADS",
    "PYTHONBREAKPOINT",
)
# Seconds that an actor has to end its daemon, before it is ended itself.
_KILL_S = 5.0


class Ray:
    """The nodes of a Ray cluster.

    A daemon uses all devices of its node. `resources` reserve them in Ray's books, so that no
    other Ray task is given them.

    Args:
        address: Address of the cluster, "HOST:PORT". Default: the running cluster of this machine,
            or RAY_ADDRESS.
        hosts: Number of hosts, each on a node of its own, for which Ray waits. Default: one on
            each node that is up and has `resources`, or CPUs if none are given.
        resources: Ray resources per host, such as `{"GPU": 8}`. Default: one CPU with `hosts`, none
            without.

    Attributes:
        count: Number of hosts.
        listen: Address of this node, "127.0.0.1" if all nodes are on this machine.

    Raises:
        ImportError: Ray is not installed.
        ConnectionError: There is no cluster at the address.
        ValueError: `hosts` is below 1.
        RuntimeError: No node has the resources.
    """

    def __init__(
        self,
        address: str | None = None,
        hosts: int | None = None,
        resources: Mapping[str, int | float] | None = None,
    ):
        if hosts is not None and hosts < 1:
            raise ValueError(
                f"hosts must be at least 1, got {hosts}; write Ray(hosts=2), or leave it out for "
                f"all nodes"
            )
        ray = self._ray = _import_ray()
        self._started = not ray.is_initialized()
        if self._started:
            _connect(ray, address)
        self._resources = dict(resources or {})
        self._group = None
        self._nodes: dict[int, str] = {}
        alive = _alive(ray)
        if hosts is None:
            fitting = [node for node in alive if _fits(node, self._resources or {"CPU": 1e-4})]
            if not fitting:
                raise RuntimeError(
                    f"a Ray node must have resources={self._resources}, got "
                    f"{[node['Resources'] for node in alive]}; lower them, or add a node"
                )
            self._nodes = {place: node["NodeID"] for place, node in enumerate(fitting)}
            self.count = len(fitting)
        else:
            bundle = self._resources or {"CPU": 1}
            self._group = ray.util.placement_group([bundle] * hosts, strategy="STRICT_SPREAD")
            self._resources, self.count = bundle, hosts
        own: str = ray.util.get_node_ip_address()
        local = all(node["NodeManagerAddress"] == own for node in alive)
        self.listen = "127.0.0.1" if local else own

    def place(self, line: Sequence[str], environment: Mapping[str, str], *, place: int) -> Actor:
        """Starts an actor that runs the daemon, and returns at once.

        A place whose node is gone moves to a node that no other place has, if there is one.

        Args:
            line: The command after the Python interpreter.
            environment: Variables to add on the node.
            place: Index of the host.

        Returns:
            The actor.
        """
        ray = self._ray
        from ray.util.scheduling_strategies import (
            NodeAffinitySchedulingStrategy,
            PlacementGroupSchedulingStrategy,
        )

        if self._group is not None:
            strategy: Any = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=place
            )
            name = f"ray host {place}"
        else:
            node = self._nodes[place] = self._node(place)
            strategy = NodeAffinitySchedulingStrategy(node, soft=False)
            name = f"ray node {node[:8]}"
        amounts = dict(self._resources)
        # Two threads: one waits for the daemon, one can end it.
        actor = ray.remote(_Launcher).options(
            num_cpus=amounts.pop("CPU", 0),
            num_gpus=amounts.pop("GPU", 0),
            resources=amounts,
            scheduling_strategy=strategy,
            max_concurrency=2,
            max_restarts=0,
        )
        return Actor(ray, actor.remote(), name, list(line), dict(environment))

    def _node(self, place: int) -> str:
        alive = [
            node["NodeID"]
            for node in _alive(self._ray)
            if _fits(node, self._resources or {"CPU": 1e-4})
        ]
        node = self._nodes[place]
        free = [other for other in alive if other not in self._nodes.values()]
        return node if node in alive or not free else free[0]

    def close(self) -> None:
        """Gives the placement group back, and leaves the cluster if this backend joined it."""
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)
        if self._started:
            self._ray.shutdown()


def _import_ray() -> Any:
    try:
        import ray
        import ray.util
    except ImportError as error:
        raise ImportError(
            'Ray() must find the package ray, got none; type: pip install "dovetail-cluster[ray]"'
        ) from error
    return ray


def _connect(ray: Any, address: str | None) -> None:
    try:
        ray.init(address=address or "auto", logging_level="warning")
    except ConnectionError as error:
        raise ConnectionError(
            f"Ray() must reach a running cluster, got none at address={address!r} ({error}); type "
            f"`ray start --head`, or write Ray('HOST:PORT')"
        ) from error


def _alive(ray: Any) -> list[dict[str, Any]]:
    # In the order of their names, so that a place means the same node in each run.
    return sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: node["NodeID"])


def _fits(node: Mapping[str, Any], resources: Mapping[str, int | float]) -> bool:
    return all(node["Resources"].get(name, 0) >= amount for name, amount in resources.items())


class Actor:
    """A daemon that an actor runs. See `Placed`.

    Args:
        ray: The package.
        actor: Handle of a `_Launcher`.
        name: What the place is called in messages.
        line: The command after the Python interpreter.
        environment: Variables to add.
    """

    def __init__(
        self, ray: Any, actor: Any, name: str, line: list[str], environment: dict[str, str]
    ):
        self.name, self._ray, self._actor = name, ray, actor
        # The interpreter is that of Ray's worker: the driver's may be elsewhere.
        self._end = actor.run.remote(line, environment, os.getcwd())
        self._code: int | None = None

    def poll(self) -> int | None:
        """Exit code of the daemon, -1 if its actor or node is gone, None while it runs."""
        if self._code is None and self._ray.wait([self._end], timeout=0)[0]:
            try:
                self._code = self._ray.get(self._end)
            except self._ray.exceptions.RayError:
                self._code = -1
        return self._code

    def kill(self) -> None:
        """Ends the daemon and its actor."""
        if self.poll() is None:
            self._actor.kill.remote()
            self._ray.wait([self._end], timeout=_KILL_S)
        self._ray.kill(self._actor, no_restart=True)
        if self.poll() is None:
            self._code = -1


class _Launcher:
    """Runs a daemon on a Ray node. An actor."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._lock, self._killed = threading.Lock(), False

    def run(self, line: list[str], environment: dict[str, str], directory: str) -> int:
        """Starts the daemon and waits for it.

        Args:
            line: The command after the Python interpreter.
            environment: Variables to add.
            directory: Where the driver runs. The daemon runs there too, if this node has it.

        Returns:
            Its exit code.
        """
        with self._lock:
            if self._killed:
                return -signal.SIGKILL
            self._process = Process(
                line,
                {**_node_environment(), **environment},
                directory=directory if os.path.isdir(directory) else None,
            )
        return self._process.wait()

    def kill(self) -> None:
        """Kills the daemon, also one that is about to start."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()


def _node_environment() -> dict[str, str]:
    """The environment of this worker, without the changes that Ray has made for it."""
    import ray

    try:
        with open(f"/proc/{os.environ['RAY_RAYLET_PID']}/environ", "rb") as file:
            pairs = (entry.partition(b"=") for entry in file.read().split(b"\0"))
            node = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    except OSError:  # no /proc: the variables are removed
        node = {}
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RAY_") and name not in _OVERWRITTEN
    }
    environment |= {name: node[name] for name in _OVERWRITTEN if name in node}
    return environment | (ray.get_runtime_context().runtime_env.get("env_vars") or {})

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The connection to Ray: to a cluster, or to a local Ray that is started and stopped.

Ray prints nothing here: no dashboard, no usage statistics, no output of workers.
"""

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dovetail_data._arguments import require_package

_ANSWER_S = 20  # more than a loaded host needs to accept a connection
# No report of the usage to Ray's makers, and no advice about GPUs that no task here asks for.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


@contextmanager
def connected(*, hosts: int, address: str | None) -> Iterator[tuple[Any, bool]]:
    """Connects this process to Ray, and disconnects it afterwards.

    A connection that the process has already is used and kept.

    Args:
        hosts: CPUs of the local Ray.
        address: Address of a cluster; None starts a local Ray.

    Yields:
        The module `ray`, and whether its local Ray was started here.

    Raises:
        ImportError: Ray is not installed.
        ValueError: There is no cluster at the address, or the process is connected to another.
    """
    ray = require_package("ray", "hosts= needs", extra="ray")
    if ray.is_initialized():
        _check_same(ray, address)
        yield ray, False
        return
    try:
        with _environment(_QUIET), _own_signals():
            options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
            if address is None:
                # "local" is a new one, even where RAY_ADDRESS names a cluster.
                ray.init("local", num_cpus=hosts, include_dashboard=False, **options)
            else:
                _join(ray, address, options)
        yield ray, address is None
    finally:
        ray.shutdown()


def _join(ray: Any, address: str, options: Mapping[str, Any]) -> None:
    try:
        _check_listening(address)
        ray.init(address, **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"ray must be the address of a cluster that runs: got ray={address!r}: {error}. Start "
            "one by `ray start --head`, or leave it out for a local one."
        ) from error


def _check_listening(address: str) -> None:
    """Raises OSError if nobody answers at HOST:PORT. Ray itself would try for minutes."""
    host, separator, port = address.rpartition(":")
    if separator and "/" not in host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()


def _check_same(ray: Any, address: str | None) -> None:
    """Raises ValueError for the address of another cluster than the connected one."""
    own = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", own):
        raise ValueError(
            f"ray must be the cluster that this process is connected to: got ray={address!r}, it "
            f"is connected to {own!r}. Call ray.shutdown() first, or leave it out."
        )


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables that are not set, and removes them afterwards."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keeps this process's reaction to SIGTERM. With Ray's, a wait for tasks does not end."""
    main = threading.current_thread() is threading.main_thread()
    terminate = signal.getsignal(signal.SIGTERM) if main else None
    try:
        yield
    finally:
        if terminate is not None:
            signal.signal(signal.SIGTERM, terminate)

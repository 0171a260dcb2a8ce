# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail train` on many hosts: the command drives them, and each calls the same launch.

The command checks the settings, holds the lock of the run and records the states of the job. A
cluster then calls `ranks.rank` on all hosts, and again after a failure or on another number of
hosts. Each call goes on from the newest checkpoint, as a launch by hand would.
"""

import contextlib
import functools
import importlib.util
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import AbstractMesh

from dovetail_cluster import Cluster, Elastic, JobError, Local, RankError, Ray, Slurm
from dovetail_cluster.backends.base import Backend
from dovetail_runs import Run
from dovetail_runs.record import job
from dovetail_stack import launch_settings, rewinding, settings
from dovetail_stack.launch_options import HOSTS, LONG, STALL_S
from dovetail_stack.processes import over_all
from dovetail_stack.ranks import FinalError, rank
from dovetail_train import abstract_mesh

# Imported once on each host, before its ranks are forked.
PRELOAD = ("dovetail_stack.recipes.fitting", "dovetail_stack.recipes.language_model")


def drive(values: dict[str, Any], out: Path, *, command: Sequence[str]) -> bool:
    """Trains a run on many hosts to its end, or resumes it.

    Args:
        values: Parsed options by name.
        out: Directory of the run, which all hosts share.
        command: Arguments of the command `dovetail`.

    Returns:
        False if Ctrl-C or SIGTERM stopped it early. Its state is then saved.

    Raises:
        ValueError: Options contradict each other, or a number of hosts does not fit.
        RuntimeError: The job failed more often than it may, or another process holds the run.
    """
    jax.config.update("jax_platforms", "cpu")  # the devices are for the ranks
    stall_s = values.get("stall", STALL_S)
    with contextlib.ExitStack() as stack:
        if not out.is_file():  # which is refused below
            stack.enter_context(Run(out).locked())  # before a host, and before the run changes
        backend, devices = _backend(values), 1
        cluster = None
        if {"ray", "slurm"} & values.keys():  # their devices are counted there
            cluster = stack.enter_context(Cluster(backend, preload=PRELOAD))
            devices = min(cluster.map(_count_devices))
        numbers = allowed(values, out, hosts=backend.count, devices_per_host=devices)
        changes = _prepare(values, out, devices=max(numbers) * devices)
        recorder = stack.enter_context(job.recorded(out, numbers, logger="dovetail_cluster"))
        if cluster is None:
            cluster = stack.enter_context(Cluster(backend, preload=PRELOAD))
        stack.enter_context(_suspended_by_signals(cluster))
        elastic = Elastic(hosts=numbers, stall_s=stall_s, first_step_s=LONG * stall_s)
        arguments = _for_ranks(values), out, list(command), changes, LONG * stall_s

        def watch(state: str, since_s: float) -> None:
            recorder.enter(state, since_s)
            if state == "suspended":
                raise _SuspendedError

        run = functools.partial(cluster.run, rank, *arguments, elastic=elastic, watch=watch)
        return _outcome(run, out, recorder)


def allowed(
    values: dict[str, Any], out: Path, *, hosts: int, devices_per_host: int
) -> tuple[int, ...]:
    """Returns the numbers of hosts that the job may have, from --fewest-hosts on.

    Args:
        values: Parsed options by name.
        out: Directory of the run.
        hosts: Number of all hosts.
        devices_per_host: Number of devices of each.

    Raises:
        ValueError: The mesh of the most or of the fewest hosts does not divide the batch. The
            message lists the numbers that fit.
    """
    fewest = values.get("fewest_hosts", hosts)
    if fewest > hosts:
        raise ValueError(
            f"fewest_hosts must be at most the {hosts} hosts, got fewest_hosts={fewest}: pass "
            f"--fewest-hosts {hosts}, or leave it out"
        )
    run = launch_settings.planned(values, out)
    given = settings.given_of(values, type(run))
    run = settings.changed(given, run) if given else run
    errors = {n: _misfit(run, values, n * devices_per_host) for n in range(1, hosts + 1)}
    wrong = next((n for n in (hosts, fewest) if errors[n] is not None), None)
    if wrong is not None:
        fitting = ", ".join(str(n) for n, error in errors.items() if error is None)
        raise ValueError(
            f"the mesh of {wrong} hosts with {devices_per_host} devices each must fit: "
            f"{errors[wrong]}. Numbers of hosts that fit: {fitting or 'none'}"
        )
    return tuple(n for n in range(fewest, hosts + 1) if errors[n] is None)


class _SuspendedError(Exception):
    """The job stands still at an agreed step, saved, as a signal has asked."""


def _backend(values: Mapping[str, Any]) -> Backend:
    if "slurm" in values:
        return Slurm()
    if "ray" in values:
        if importlib.util.find_spec("ray") is None:
            raise ImportError(
                f"--ray needs the package ray, got --ray {values['ray']} without it: type "
                f'pip install "dovetail-stack[ray]"'
            )
        return Ray(None if values["ray"] == "auto" else values["ray"], values.get("hosts"))
    return Local(values["hosts"])


def _count_devices() -> int:
    return jax.local_device_count()


def _misfit(run: settings.Settings, values: Mapping[str, Any], devices: int) -> str | None:
    """Returns the reason why the mesh over so many devices does not fit, or None."""
    try:
        launch_settings.check_batch(run, _absent_mesh(values, devices))
    except ValueError as error:
        return str(error)
    return None


def _absent_mesh(values: Mapping[str, Any], devices: int) -> AbstractMesh:
    return abstract_mesh(devices, device=None, **over_all(settings.axes_of(values), devices))


def _prepare(values: dict[str, Any], out: Path, *, devices: int) -> dict[str, Any]:
    """Checks and stores the settings, and completes a rewind. Returns what the rewind changed."""
    run = launch_settings.resolved(values, out, _absent_mesh(values, devices))
    if run.rewind is None:
        return {}
    changes = rewinding.changes(run, out)
    rewinding.completed(run, out)
    return changes


def _for_ranks(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a launch on a rank. A rewind has been completed."""
    left_out = {*HOSTS, "parser", "argv", "rewind", "leave_out", "json"}
    return {name: value for name, value in values.items() if name not in left_out}


@contextlib.contextmanager
def _suspended_by_signals(cluster: Cluster) -> Iterator[None]:
    """SIGINT or SIGTERM suspends the job in the block, so that it saves. A second one ends it."""
    asked: list[int] = []

    def suspend(number: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt("what was not saved is lost")
        asked.append(number)
        # A print could be interrupted by this handler, which may not print then.
        os.write(2, b"Stopping at an agreed step, to save. The same again stops at once.\n")
        cluster.resize(0)

    before = {number: signal.signal(number, suspend) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _outcome(run: Callable[[], object], out: Path, recorder: job.Recorder) -> bool:
    """Runs the job and records its end. Raises the error of a rank as the launch raised it."""
    try:
        run()
    except _SuspendedError:
        last = Run(out).events[-1:]
        finished = bool(last) and last[0].get("outcome") == "finished"
        recorder.end("finished" if finished else "interrupted")
        return finished
    except JobError as error:
        refusal = error.__cause__ if isinstance(error.__cause__, FinalError) else None
        Run(out).end_launch(refusal or error)
        if isinstance(error, RankError) and error.__cause__ is not None:
            raise error.__cause__ from error
        raise
    recorder.end("finished")
    return True

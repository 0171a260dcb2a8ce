# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A test for users' own training functions: they must survive faults with their result unchanged.

`survives` runs a function twice on local hosts: unbroken, then with real faults of real processes.
A fault strikes as soon as a chosen step is complete, and ranks wait for it there. What depends on
the seed is which fault, on which host, after which step; the race of the ranks to it is real.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dovetail_cluster.cluster import Cluster, Result
from dovetail_cluster.context import Context, Progress
from dovetail_cluster.elastic import Elastic
from dovetail_cluster.fault_plan import Fault, plan_faults
from dovetail_cluster.marks import marked_processes

# Seconds between two looks at the log of steps.
_LOOK_S = 0.01
# Seconds between two attempts to bring back a host that was dismissed.
_RESTORE_S = 0.5


class Struck(NamedTuple):
    """A fault that was injected.

    Attributes:
        fault: The fault.
        generation: The generation that it ended.
        recovery_s: Seconds from the fault to the next completed step.
    """

    fault: Fault
    generation: int
    recovery_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The faults that the function survived. Prints as a table.

    Attributes:
        seed: The seed of the plan.
        unbroken: Result of the run without faults.
        broken: Result of the run with faults.
        struck: The faults in their order.
    """

    seed: int
    unbroken: Result
    broken: Result
    struck: tuple[Struck, ...]

    def __str__(self) -> str:
        lines = [f"{'fault':>5} {'kind':<12} {'host':>4} {'step':>6} {'ended':>5} {'seconds':>8}"]
        for fault, generation, recovery_s in self.struck:
            lines.append(
                f"{fault.number:>5} {fault.kind:<12} {fault.host:>4} {fault.step:>6} "
                f"{generation:>5} {recovery_s:>8.2f}"
            )
        return "\n".join(lines)


def survives(
    train: Callable[..., Any],
    *args: Any,
    hosts: int = 3,
    devices_per_host: int | None = 1,
    faults: int = 20,
    only: int | None = None,
    seed: int = 0,
    elastic: Elastic | None = None,
    compare: Callable[[Any, Any], bool] | None = None,
) -> Report:
    """Checks that `train` has the same values with faults as without.

    Each of the two runs calls `train` in an empty working directory, so relative paths of
    checkpoints are its own. `train` must report steps to `ctx.progress`, ask `ctx.stop` and go on
    from its last checkpoint. Absolute paths for checkpoints would let the second run find the
    first one's.

    Args:
        train: The function, as for `Cluster.run`.
        *args: Its further arguments.
        hosts: Number of local hosts.
        devices_per_host: CPU devices of each; see `Cluster.local` for None.
        faults: Number of faults. The function needs more steps than that.
        only: Inject this fault of the plan alone, to replay it.
        seed: Seed of the plan.
        elastic: How the job meets failures. Default: all hosts, 5 s for a step.
        compare: Called with the values of rank 0, unbroken and broken; False fails. Default: the
            values of all ranks are equal, arrays and floats to the last bit.

    Returns:
        The faults, and the time from each to the next step.

    Raises:
        ValueError: An argument is out of range, or the function has too few steps.
        AssertionError: The values differ, the job failed or a process is left. The message names
            the fault and how to replay it.
    """
    if faults < 1 or (only is not None and not 0 <= only < faults):
        raise ValueError(
            f"faults must be at least 1 and only one of their numbers, got faults={faults}, "
            f"only={only}; write faults=20"
        )
    if elastic is None:
        elastic = Elastic(stall_s=5.0, budget={"crash": 10, "stall": 10, "exception": 2})
    replay = f"survives(train, hosts={hosts}, faults={faults}, seed={seed}"
    with tempfile.TemporaryDirectory() as scratch, marked_processes() as left:
        folders = [pathlib.Path(scratch, name) for name in ("unbroken", "broken")]
        with Cluster.local(hosts=hosts, devices_per_host=devices_per_host) as cluster:
            unbroken = cluster.run(_Watched(train, folders[0], ()), *args, elastic=elastic)
            steps = sorted({line.step for line in _lines(folders[0])})
            plan = plan_faults(steps, hosts=hosts, faults=faults, seed=seed)
            if only is not None:
                plan = plan[only : only + 1]
            watched = _Watched(train, folders[1], tuple(plan))
            attack = _Attack(cluster, watched, args, elastic, replay)
            broken = attack.run()
        _check_values(unbroken, broken, compare, f"{attack.latest}; replay them: {replay})")
        if pids := left():
            raise AssertionError(
                f"no process may be left, got {pids} after {attack.latest}; replay: {replay})"
            )
    return Report(seed=seed, unbroken=unbroken, broken=broken, struck=tuple(attack.struck))


class Line(NamedTuple):
    """A completed step of a rank.

    Attributes:
        generation: Generation of the rank.
        rank: Number of the rank.
        step: The step.
        time_s: When it was complete, by `time.monotonic`.
    """

    generation: int
    rank: int
    step: int
    time_s: float


class _Watched:
    """The user's function in a folder of its own. Its steps are logged, and wait for faults."""

    def __init__(self, train: Callable[..., Any], folder: pathlib.Path, plan: tuple[Fault, ...]):
        self.train, self.folder, self.plan = train, folder, plan
        (folder / "work").mkdir(parents=True)
        (folder / "log").touch()

    def __call__(self, ctx: Context, *args: Any) -> Any:
        os.chdir(self.folder / "work")
        ctx.progress = _Steps(ctx, self.folder, self.plan)
        return self.train(ctx, *args)

    def gate(self, fault: Fault) -> pathlib.Path:
        """A file that is there once the fault may take its course."""
        return self.folder / f"gate{fault.number}"


class _Steps(Progress):
    """Logs steps, and holds a rank that comes to a fault until the fault is injected."""

    def __init__(self, context: Context, folder: pathlib.Path, plan: tuple[Fault, ...]):
        super().__init__(context)
        self._folder = folder
        self._pending = [fault for fault in plan if not (folder / f"gate{fault.number}").exists()]

    def write(self, step: int, scalars: Mapping[str, Any] | None = None) -> None:
        """Notes that `step` is complete.

        Args:
            step: The step.
            scalars: Not read.
        """
        super().write(step, scalars)
        context = self._context
        line = f"{context.generation} {context.rank} {step} {time.monotonic()}\n"
        # One write of one line: the lines of all ranks stay whole.
        with open(self._folder / "log", "ab", buffering=0) as log:
            log.write(line.encode())
        if not self._pending or step < self._pending[0].step:
            return
        # The next fault strikes a later generation: a rank that waited for it here would keep the
        # others from an agreed stop.
        fault, self._pending = self._pending[0], []
        while not (self._folder / f"gate{fault.number}").exists():
            time.sleep(_LOOK_S)
        if fault.kind == "raise" and fault.host == context.rank:
            with contextlib.suppress(FileExistsError):  # raised before the restart
                (self._folder / f"raised{fault.number}").touch(exist_ok=False)
                raise RuntimeError(f"injected by {fault}")


def _lines(folder: pathlib.Path) -> list[Line]:
    # The last line may be only half there.
    text = (folder / "log").read_text().rpartition("\n")[0]
    lines = (line.split() for line in text.splitlines())
    return [Line(int(a), int(b), int(c), float(d)) for a, b, c, d in lines]


class _Over(Exception):
    """The job has ended before the fault, or before the fault had an effect."""


class _Attack:
    """The broken run: injects one fault after another while the job runs in a thread.

    Attributes:
        struck: The faults so far.
        latest: The newest of them, for messages.
    """

    def __init__(
        self,
        cluster: Cluster,
        watched: _Watched,
        args: tuple[Any, ...],
        elastic: Elastic,
        replay: str,
    ):
        self.struck: list[Struck] = []
        self.latest = "no fault"
        self._cluster, self._watched, self._elastic = cluster, watched, elastic
        self._args, self._replay = args, replay
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._call, name="dovetail-survives")

    def run(self) -> Result:
        """Runs the job to its end.

        Raises:
            AssertionError: It failed.
        """
        over = None
        self._thread.start()
        try:
            for fault in self._watched.plan:
                self._strike(fault)
        except _Over as error:
            over = error
        finally:
            for fault in self._watched.plan:  # no rank may wait for a fault that never comes
                self._watched.gate(fault).touch()
            self._thread.join()
        if self._result is None:
            raise AssertionError(
                f"train must survive {self.latest}, got {type(self._error).__name__}: "
                f"{self._error}; replay it: {self._replay})"
            ) from self._error
        if over is not None:
            raise AssertionError(
                f"the run with faults must go on after {over}, got its end; use relative paths for "
                f"checkpoints, and report the same steps in both runs: {self._replay})"
            )
        return self._result

    def _call(self) -> None:
        try:
            self._result = self._cluster.run(self._watched, *self._args, elastic=self._elastic)
        except BaseException as error:  # raised again by `run`
            self._error = error

    def _wait(self, ready: Callable[[Line], bool]) -> Line | None:
        """Waits for a completed step; None if the job ends without it."""
        while True:
            running = self._thread.is_alive()
            for line in _lines(self._watched.folder):
                if ready(line):
                    return line
            if not running:
                return None
            time.sleep(_LOOK_S)

    def _strike(self, fault: Fault) -> None:
        first = 0 if not self.struck else self.struck[-1].generation + 1
        at = self._wait(lambda line: line.generation >= first and line.step >= fault.step)
        if at is None:
            raise _Over(fault)
        self.latest = f"{fault}, to replay alone: {self._replay}, only={fault.number})"
        # A generation may have ended by itself in between, such as by the deadline of a step.
        newest = max(line.generation for line in _lines(self._watched.folder))
        begin = time.monotonic()
        self._inject(fault)
        self._watched.gate(fault).touch()
        stop_restoring = threading.Event()
        restorer = threading.Thread(target=self._restore, args=(fault, stop_restoring))
        restorer.start()
        try:
            after = self._wait(lambda line: line.generation > newest)
        finally:
            stop_restoring.set()
            restorer.join()
        if after is None:
            raise _Over(fault)
        self.struck.append(Struck(fault, newest, after.time_s - begin))

    def _inject(self, fault: Fault) -> None:
        host = self._cluster.host(fault.host)
        match fault.kind:
            case "kill":
                host.kill()
            case "kill_daemon":
                host.kill_daemon()
            case "stop":
                host.stop()
            case "stall":
                host.stall(10 * self._elastic.stall_s)
            case "notice":
                host.notice()
            case "remove":
                host.remove()

    def _restore(self, fault: Fault, stop: threading.Event) -> None:
        """Brings back a host that is away: at once, not after the minute that a notice takes."""
        if fault.kind in ("notice", "remove"):
            while not stop.wait(_RESTORE_S):
                self._cluster.host(fault.host).restore()


def _check_values(
    unbroken: Result, broken: Result, compare: Callable[[Any, Any], bool] | None, last: str
) -> None:
    if compare is not None:
        same = compare(unbroken.value, broken.value)
    else:
        same = _bits(unbroken.values) == _bits(broken.values)
    if not same:
        raise AssertionError(
            f"values with faults must equal those without, got {broken.value!r} instead of "
            f"{unbroken.value!r}; the last fault was {last}"
        )


def _bits(value: Any) -> list[Any]:
    """The structure and the bits of a value: equal for equal values, also for NaN."""
    import jax
    import numpy as np

    leaves, structure = jax.tree.flatten(value)
    bits: list[Any] = [str(structure)]
    for leaf in leaves:
        if isinstance(leaf, np.ndarray | np.generic | jax.Array):
            array = np.asarray(leaf)
            bits.append((str(array.dtype), array.shape, array.tobytes()))
        else:
            bits.append(pickle.dumps(leaf))
    return bits

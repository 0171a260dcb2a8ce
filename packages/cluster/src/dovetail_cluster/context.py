# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The user's side of a job: who am I, shall I stop, and how far I am.

`Context.stop` and `Context.progress.write` only count and store; a thread of the rank sends the
newest state. A rank blocks at an agreed question alone, until the controller has heard from all.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dovetail_cluster._traces import process_trace
from dovetail_cluster.events import Answered, Commit, Lives, Progressed, Propose
from dovetail_cluster.store import DurableStore, SavesInPhase

if TYPE_CHECKING:
    from jax.sharding import Mesh

AXES = ("stage", "data", "fsdp", "expert", "context", "tensor")

SinkT = TypeVar("SinkT")


class Home(NamedTuple):
    """A rank's place on its host, from the daemon.

    Args:
        shelf: A folder that outlives the rank.
        local: The address to listen on.
        begun_s: The driver's `time.time()` when the run began.
    """

    shelf: str
    local: str
    begun_s: float


class Progress:
    """A sink of scalars that reports completed steps. Give it to a trainer on every rank.

    Attributes:
        everywhere: True: a trainer writes to it on every process.
    """

    everywhere = True

    def __init__(self, context: Context) -> None:
        self._context = context

    def write(self, step: int, scalars: Mapping[str, Any] | None = None) -> None:
        """Notes that `step` is complete. The scalars are not read."""
        self._context._complete(step)

    def begin_activity(self, activity: str) -> None:
        """Notes that the rank begins an activity before its first step, such as "compile".

        A rank that stays behind the others in these is named long before `Elastic.first_step_s`.
        All ranks begin the same activities. `dovetail_train.Trainer.fit` calls it.
        """
        self._context._begin(activity)

    def close(self) -> None:
        """Does nothing: a rank's progress ends with its function."""


class Context:
    """A rank's view of its job, given to the user's function as first argument.

    Args:
        rank: Number of this rank, from 0.
        hosts: Number of ranks, one on each host.
        generation: Number of this call of the function. It grows with each restart.
        host: Number of the host.
        home: What the rank has from its daemon; None without one.

    Attributes:
        rank: Number of this rank, from 0.
        hosts: Number of ranks, one on each host.
        generation: Number of this call of the function. It grows with each restart.
        progress: Sink for completed steps: `progress.write(step, scalars)`.
    """

    def __init__(
        self,
        rank: int,
        hosts: int,
        generation: int,
        *,
        host: int = 0,
        home: Home | None = None,
    ) -> None:
        self.rank, self.hosts, self.generation = rank, hosts, generation
        self._home, self._tiers, self._traces = home, 0, 0
        self.progress = Progress(self)
        self._host = host
        self._changed = threading.Condition(threading.Lock())
        self._asked = 0
        self._step: int | None = None
        self._phases: list[tuple[str, float | None]] = []
        self._activity, self._begun = "", 0
        self._hold: int | None = None  # the question at which this rank waits
        self._committed: int | None = None
        self._joined = True  # False in a rank that waits for the others to join it
        self._stopped = False
        self._stall_s = 0.0

    def mesh(self, **axes: int) -> Mesh:
        """Returns the mesh of all devices of all ranks. One axis of -1 takes the rest.

        The axes are stage, data, fsdp, expert, context and tensor, in this order, with Auto types.
        Their default size is 1.

        Raises:
            ValueError: An axis is unknown, or the sizes do not multiply to the number of devices.
            TypeError: A size is not a whole number.

        Example:

            >>> Context(0, 1, 0).mesh(data=-1).shape["data"]
            1
        """
        import jax
        from jax.sharding import AxisType

        devices = jax.devices()
        shape = mesh_shape(axes, len(devices))
        return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES), devices=devices)

    def stop(self, step: int) -> bool:
        """Asks whether to stop here. All ranks get the same answer to the same question.

        Ask it equally often on all ranks, such as after each step. On True, save and return; the
        function may be called again, on other hosts. Once True it stays True.

        Args:
            step: The current step, for the reader; the questions are counted.
        """
        del step
        if self._stall_s:
            self._sleep()
        with self._changed:
            question = self._asked
            self._asked += 1
            while not self._stopped and self._hold is not None and question >= self._hold:
                if self._committed is not None and question >= self._committed:
                    self._stopped = True
                else:
                    self._changed.wait()
            return self._stopped

    def only_first(self, sinks: Sequence[SinkT]) -> Sequence[SinkT]:
        """Returns the sinks on rank 0, and none elsewhere."""
        return sinks if self.rank == 0 else ()

    def store(self, store: DurableStore) -> SavesInPhase:
        """Returns the store with each save in the phase "save".

        A save completes no step, so the deadline of a step would call a long one a hang. Give the
        result to a trainer in place of the store. `LocalTier` needs no such help.

        Args:
            store: A durable store, such as `dovetail_checkpoint.Store`.

        Raises:
            TypeError: The store lacks a method.

        Example:

            def train(ctx):
                with Store("run") as store:
                    trainer.fit(model, data, steps=1000, store=ctx.store(store), stop=ctx.stop)
        """
        return SavesInPhase(store, self.phase)

    @contextlib.contextmanager
    def phase(self, name: str, *, stall_s: float | None = None) -> Iterator[None]:
        """Names work without steps, such as an evaluation or an export, and gives its deadline.

        Of nested phases the innermost counts. A rank outside has the deadline of a step, so open
        the phase on all ranks, also where only one works and the others wait for it.

        Args:
            name: What reports call it.
            stall_s: Seconds after which the rank counts as stuck, instead of `Elastic.stall_s`.
                Default: `Elastic.first_step_s`; but `Elastic.stall_s` without a sign of life.

        Raises:
            ValueError: The name is empty, or `stall_s` is not above 0.
        """
        if not name or (stall_s is not None and not stall_s > 0):
            raise ValueError(
                f"a phase must have a name and a deadline above 0 s, got name={name!r}, "
                f"stall_s={stall_s}; write ctx.phase('eval', stall_s=600.0)"
            )
        with self._changed:
            self._phases.append((name, None if stall_s is None else float(stall_s)))
        try:
            yield
        finally:
            with self._changed:
                self._phases.pop()

    @contextlib.contextmanager
    def trace(self, folder: str | os.PathLike[str], *, python: bool = False) -> Iterator[None]:
        """Traces this rank with `jax.profiler`, beside the other ranks, if all enter it alike.

        The n-th trace of generation g is the run "generation{g}-{n}" of XProf or TensorBoard, with
        a host for each rank: FOLDER/plugins/profile/RUN/process{rank}.xplane.pb.

        Args:
            folder: A folder that the hosts share. Without a shared disk each host has its own
                rank's files.
            python: Record the calls of Python too, which makes the trace many times larger.
        """
        self._traces += 1
        run = f"generation{self.generation}-{self._traces}"
        with process_trace(folder, run=run, process=self.rank, python=python):
            yield

    def _complete(self, step: int) -> None:
        if self._stall_s:
            self._sleep()
        self._step = int(step)

    def _begin(self, activity: str) -> None:
        with self._changed:
            self._activity, self._begun = activity, self._begun + 1

    def _sleep(self) -> None:
        seconds, self._stall_s = self._stall_s, 0.0
        time.sleep(seconds)

    def _state(self) -> Progressed:
        with self._changed:
            name, stall_s = self._phases[-1] if self._phases else ("", None)
            return Progressed(
                self._host,
                self.generation,
                self._step,
                self._asked,
                name,
                stall_s,
                self._activity,
                self._begun,
            )

    def _propose(self, proposal: Propose) -> Answered:
        """Accepts a question without an answer yet, and waits at it from now on."""
        with self._changed:
            question = proposal.question
            waits = self._hold is not None and self._asked > self._hold
            passed = self._asked - 1 if waits else self._asked  # questions that were answered
            accepted = not self._stopped and passed <= question
            if accepted:
                self._hold = question
                self._changed.notify_all()
            return Answered(self._host, self.generation, question, accepted, self._asked)

    def _commit(self, commit: Commit) -> None:
        with self._changed:
            self._committed = commit.question
            self._changed.notify_all()


def mesh_shape(axes: Mapping[str, int], count: int) -> tuple[int, ...]:
    """Completes the sizes of a mesh of `count` devices, in the order of `AXES`.

    Raises:
        ValueError: An axis is unknown, or the sizes do not multiply to `count`.
        TypeError: A size is not a whole number.
    """
    if unknown := [name for name in axes if name not in AXES]:
        raise ValueError(
            f"axes must be among {', '.join(AXES)}, got {', '.join(unknown)}; write mesh(data=-1)"
        )
    for name, size in axes.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(
                f"a size must be a whole number, got {name}={size!r}; write {name}=-1 for the rest"
            )
        if size < 1 and size != -1:
            raise ValueError(
                f"a size must be at least 1, or -1 for the rest, got {name}={size}; write {name}=-1"
            )
    sizes = {name: axes.get(name, 1) for name in AXES}
    free = [name for name, size in sizes.items() if size == -1]
    given = math.prod(size for size in sizes.values() if size != -1)
    if len(free) > 1:
        raise ValueError(
            f"one size at most must be -1, got {' and '.join(free)}; write mesh({free[0]}=-1)"
        )
    if given == count or (free and count % given == 0):
        return tuple(count // given if size == -1 else size for size in sizes.values())
    divisors = ", ".join(str(n) for n in range(1, count + 1) if count % n == 0)
    text = ", ".join(f"{name}={size}" for name, size in axes.items())
    rest = "divide" if free else "be"
    raise ValueError(
        f"the product of the sizes must {rest} the number of devices, {count}, got {given} of "
        f"mesh({text}); the sizes that divide {count} are {divisors}: write mesh(data=-1)"
    )


Send = Callable[[Any], None]


def pump(
    context: Context,
    send: Send,
    ended: threading.Event,
    *,
    least_s: float = 0.1,
    most_s: float = 1.0,
) -> None:
    """Sends a rank's state when it has changed, and as a sign of life, until `ended`.

    Args:
        context: The rank.
        send: Called with each `Progressed`.
        ended: Set it to end the loop.
        least_s: Seconds between two messages at least.
        most_s: Seconds between two messages at most.
    """
    last, sent = None, -math.inf
    while not ended.wait(least_s):
        joined, now = context._joined, time.monotonic()
        state = context._state() if joined else Lives(context._host, context.generation)
        if state != last or now - sent >= most_s:
            send(state)
            last, sent = state, now

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Monitoring of a run: norms of parameters by name, and a trace of some steps."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dovetail_train._patterns import Patterns, each_of, name_of, select
from dovetail_train._traces import process_trace
from dovetail_train.mesh.mesh import ambient
from dovetail_train.step.state import State

if TYPE_CHECKING:
    from dovetail_train.loop.trainer import Trainer


class Watch:
    """A hook that reports norm, root mean square and largest size of selected parameters.

    The scalars are "watch/NAME/norm", "watch/NAME/rms" and "watch/NAME/max", in float32.

    Args:
        where: Name patterns, such as "layers.*.attn.**": `*` within a segment, `**` for any number
            of segments. An unmatched pattern is an error at the first call.
        every: Steps between calls.
    """

    def __init__(self, where: Patterns, *, every: int) -> None:
        if every < 1:
            raise ValueError(
                f"every must be at least 1, got every={every}; write Watch({where!r}, every=100)"
            )
        self.every, self._where = every, tuple(str(pattern) for pattern in each_of(where))

    def __call__(self, trainer: "Trainer", state: State, step: int) -> Mapping[str, float]:
        leaves = jax.tree_util.tree_leaves_with_path(state.params)
        named = {name_of(path): x for path, x in leaves}
        seen = {name: named[name] for name in select(self._where, named)}
        with ambient(trainer.mesh):
            measured = jax.device_get(_measured(seen))
        return {
            f"watch/{name}/{what}": float(value)
            for name, values in measured.items()
            for what, value in values.items()
        }


@jax.jit
def _measured(params: dict[str, Array]) -> dict[str, dict[str, Float[Array, ""]]]:
    def of(x: Array) -> dict[str, Array]:
        x = x.astype(jnp.float32)
        squares = jnp.square(x).sum()
        return {
            "norm": jnp.sqrt(squares),
            "rms": jnp.sqrt(squares / x.size),
            # XLA's parallel maximum on CPUs drops NaN.
            "max": jnp.where(jnp.isnan(squares), jnp.nan, jnp.abs(x).max()),
        }

    return {name: of(x) for name, x in params.items()}


class Trace:
    """A hook that traces `steps` steps with `jax.profiler`, from about step `start` on.

    It begins after the first multiple of `steps` from `start` on, so the loop is waited for only
    twice. A run that ends earlier writes an incomplete trace.

    Args:
        directory: Directory of the trace.
        start: First step, at least 1, since the first step compiles.
        steps: Number of steps.
        processes: "first" traces process 0 alone. "all" gives one run of XProf with a host for each
            process, in DIRECTORY/plugins/profile/stepN; on each machine, without a shared disk.
        python: Record the calls of Python too. They make the trace many times larger, and the
            steps slower. Operations have their source lines without them.

    Raises:
        ValueError: A number is below 1, or `processes` is unknown.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        start: int,
        steps: int,
        processes: Literal["first", "all"] = "first",
        python: bool = False,
    ) -> None:
        if steps < 1 or start < 1:
            raise ValueError(
                f"start and steps must be at least 1 (the first step compiles), got start={start}, "
                f"steps={steps}; write Trace(directory, start=10, steps=5)"
            )
        if processes not in ("first", "all"):
            raise ValueError(
                f"processes must be 'first' or 'all', got {processes!r}; write processes='all'"
            )
        self.every = steps
        self._directory, self._start = Path(directory), start
        self._all, self._done, self._python = processes == "all", False, python
        self._trace: contextlib.ExitStack | None = None

    def __call__(self, trainer: "Trainer", state: State, step: int) -> Mapping[str, float]:
        process = jax.process_index()
        if self._trace is not None:
            self.close()
        elif step >= self._start and not self._done and (self._all or process == 0):
            trace, names = contextlib.ExitStack(), {"run": f"step{step}", "process": process}
            trace.enter_context(process_trace(self._directory, **names, python=self._python))
            self._trace = trace
        return {}

    def close(self) -> None:
        """Ends a running trace; `fit` calls it at the end of a run."""
        if self._trace is not None:
            trace, self._trace, self._done = self._trace, None, True
            trace.close()

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Looking into a run: norms of parameters by name, and a trace of some of its steps."""

import fnmatch
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dovetail_train.precision import leaf_name
from dovetail_train.state import State

if TYPE_CHECKING:
    from dovetail_train.trainer import Trainer


class Watch:
    """A hook: the norm, root mean square and largest size of each parameter that a pattern matches.

    pattern: of dotted names (`fnmatch`), such as "layers.*.attn.*". Gives "watch/NAME/norm",
    "watch/NAME/rms" and "watch/NAME/max", in float32.

        trainer.fit(model, data, steps=1000, sinks=[sink], hooks=[Watch("*.kernel", every=100)])
    """

    def __init__(self, pattern: str, *, every: int) -> None:
        if every < 1:
            raise ValueError(
                f"every must be at least 1, got every={every}; write Watch({pattern!r}, every=100)"
            )
        self.every, self._pattern = every, pattern

    def __call__(self, trainer: "Trainer", state: State, step: int) -> Mapping[str, float]:
        leaves = jax.tree_util.tree_leaves_with_path(state.params)
        named = {leaf_name(path): x for path, x in leaves}
        seen = {name: x for name, x in named.items() if fnmatch.fnmatchcase(name, self._pattern)}
        if not seen:
            raise ValueError(
                f"a watched pattern must match a parameter, got {self._pattern!r}, which matches "
                f"none of {len(named)}; names look like {next(iter(named))!r}"
            )
        found = jax.device_get(_measured(seen))
        return {
            f"watch/{name}/{what}": float(value)
            for name, values in found.items()
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
            "max": jnp.abs(x).max(),
        }

    return {name: of(x) for name, x in params.items()}


class Trace:
    """A hook: `jax.profiler` traces `steps` steps into `directory`, from about step `start` on.

    It begins after the first multiple of `steps` that is `start` or later, so that the loop is
    waited for twice and nowhere else. A run that ends before writes what it has.
    """

    def __init__(self, directory: str | Path, *, start: int, steps: int) -> None:
        if steps < 1 or start < 1:
            raise ValueError(
                f"start and steps must be at least 1 (the first step compiles), got start={start}, "
                f"steps={steps}; write Trace(directory, start=10, steps=5)"
            )
        self.every = steps
        self._directory, self._start = Path(directory), start
        self._tracing, self._done = False, False

    def __call__(self, trainer: "Trainer", state: State, step: int) -> Mapping[str, float]:
        if self._tracing:
            self.close()
        elif step >= self._start and not self._done:
            jax.profiler.start_trace(self._directory)
            self._tracing = True
        return {}

    def close(self) -> None:
        """Ends a trace that was begun; `fit` calls it when a run ends."""
        if self._tracing:
            jax.profiler.stop_trace()
            self._tracing, self._done = False, True

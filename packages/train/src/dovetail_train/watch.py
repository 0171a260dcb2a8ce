# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Looking into a run: norms of parameters by name, and a trace of some of its steps."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dovetail_train._patterns import Patterns, each_of, name_of, select
from dovetail_train.state import State

if TYPE_CHECKING:
    from dovetail_train.trainer import Trainer


class Watch:
    """A hook: the norm, root mean square and largest size of the parameters that patterns match.

    Gives "watch/NAME/norm", "watch/NAME/rms" and "watch/NAME/max", in float32.

    Args:
        where: Patterns over names, as "layers.*.attn.**": `*` within a segment, `**` for any
            number of segments. One that matches no parameter is an error at the first call.
        every: Steps from one call to the next.

        trainer.fit(model, data, steps=1000, sinks=[sink], hooks=[Watch("**.kernel", every=100)])
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

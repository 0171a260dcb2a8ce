# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Runner`: the function on this machine, run as a loaded bundle runs it here.

A loop that goes on until all rows have converged never ends beside a row of NaN, so each run has a
limit of time.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import numpy as np
from jax import export as jax_export

from dovetail_serve.bundle.arrays import converted
from dovetail_serve.bundle.rounding import has_rounding, nudged
from dovetail_serve.exporting.jaxpr import captures_floats, coarsest
from dovetail_serve.exporting.limits import LIMIT_S, OvertimeError, limited, wait_for
from dovetail_serve.exporting.sharding import check_packed, mesh_of, on_mesh, replicated
from dovetail_serve.exporting.trace import Flow
from dovetail_serve.types import Platform

# Runs the function on this machine: inputs to outputs, as many rows as it is given.
Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]

# Beyond its limit, a run may take this multiple of the slowest time per row before.
_SLOWER = 20
# Compilers take minutes for large models, where one run on the example takes seconds.
_COMPILING = 10


class UnfinishedError(ValueError):
    """A run has given no result in a time in which others did.

    Attributes:
        waited_s: Time until it was given up, in seconds.
    """

    def __init__(self, rows: int, waited_s: float) -> None:
        self.waited_s = waited_s
        super().__init__(
            f"fn must end for each batch, got no result within {waited_s:.0f} s in a batch of "
            f"{rows}; end its loops after a number of steps (a counter in the condition of "
            "jax.lax.while_loop), or give a slow function more time with limit_s="
            f"{10 * waited_s:.0f}: the run takes a core until this process ends"
        )


class Runner:
    """Runs a function of (weights, inputs). It compiles once for each shape.

    Weights are converted, and options of the compiler are applied, as the entry of this machine's
    platform says; without such an entry weights keep their dtype.

    Args:
        flow: The function of (weights, inputs).
        weights: Arrays by name. Sharded ones stay so.
        platforms: The platforms of the bundle.
        limit_s: Time that a trace or a run may take, in seconds; a run after others 20 times as
            long per row on top. A compilation may take 10 times as long.

    Attributes:
        platform: Name of this machine's platform.
        rounding: Coarsest dtype to which the function rounds, of 16 bits or more; None for one
            without arithmetic of floats, and before the first run.
        captures: Whether the function has captured arrays of floats, which `nudged` leaves as they
            are. False before the first run.
    """

    def __init__(
        self,
        flow: Flow,
        weights: Mapping[str, jax.Array | np.ndarray],
        platforms: Sequence[Platform],
        *,
        limit_s: float = LIMIT_S,
    ) -> None:
        self.platform = jax_export.default_export_platform()
        self.rounding: str | None = None
        self.captures = False
        target = next(
            (p for p in platforms if p.name == self.platform), Platform(name=self.platform)
        )
        mesh = mesh_of(weights)
        check_packed(weights, mesh, platform=self.platform)
        self._sharding = replicated(mesh)
        self._weights = {
            name: jax.device_put(
                array.astype(converted(array.dtype, target.weights)), on_mesh(array, mesh)
            )
            for name, array in weights.items()
        }
        options = dict(target.compiler_options) or None
        self._jitted = (
            jax.jit(flow, compiler_options=options)
            if mesh is None
            else jax.jit(flow, compiler_options=options, out_shardings=self._sharding)
        )
        self._programs: dict[tuple[tuple[int, ...], ...], jax.stages.Compiled] = {}
        self._limit_s = limit_s
        self._slowest_s: float | None = None  # per row

    def __call__(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs in host memory.

        Raises UnfinishedError for a run that does not end.
        """
        return self._run(self._weights, arrays)

    def nudged(self, *, seed: int) -> Run:
        """Returns a run with weights and inputs that are changed by a rounding error each.

        It holds a copy of the weights, so keep one at a time.

        Args:
            seed: Seed of the signs of the changes, from 0.
        """
        moved = nudged(self._weights, self.rounding, seed=seed)

        def run(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            inputs = nudged(arrays, self.rounding, seed=seed, first=len(moved))
            return self._run(moved, {name: np.asarray(array) for name, array in inputs.items()})

        return run

    def is_nudged(self, arrays: Mapping[str, np.ndarray]) -> bool:
        """Whether `nudged` changes any of the weights or of these inputs."""
        values = (*self._weights.values(), *arrays.values())
        return self.rounding is not None and any(has_rounding(each.dtype) for each in values)

    def _run(
        self, weights: Mapping[str, jax.Array], arrays: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        placed = jax.device_put(dict(arrays), self._sharding)
        # Lowered here: options of JAX such as 64-bit types belong to the caller's thread.
        rows = next((len(array) for array in arrays.values() if array.ndim), 1)
        program = self._program(placed, rows)
        started = time.perf_counter()

        def outputs() -> dict[str, np.ndarray]:
            with _with_nan():
                results = program(weights, placed)
            return {name: np.asarray(value) for name, value in results.items()}

        limit_s = self._limit_s + _SLOWER * (self._slowest_s or 0.0) * rows
        try:
            results = wait_for(outputs, f"running fn in a batch of {rows}", limit_s)
        except OvertimeError:
            raise UnfinishedError(rows, limit_s) from None
        elapsed_s = (time.perf_counter() - started) / max(rows, 1)
        self._slowest_s = max(elapsed_s, self._slowest_s or 0.0)
        return results

    def _program(self, placed: Mapping[str, jax.Array], rows: int) -> jax.stages.Compiled:
        shapes = tuple(array.shape for array in placed.values())
        if shapes not in self._programs:
            batch = f"fn for a batch of {rows}"

            def lower() -> tuple[jax.stages.Traced, jax.stages.Lowered]:
                traced = self._jitted.trace(self._weights, placed)
                return traced, traced.lower()

            traced, lowered = limited(lower, f"tracing {batch}", self._limit_s)
            # Accelerators may round products of float32 to TF32 or bfloat16.
            least = None if self.platform == "cpu" else "bfloat16"
            self.rounding = coarsest(traced.jaxpr, least=least)
            self.captures = captures_floats(traced.jaxpr)
            limit_s = _COMPILING * self._limit_s
            try:
                program = wait_for(lowered.compile, f"compiling {batch}", limit_s)
            except OvertimeError:
                raise ValueError(
                    f"fn must compile within {limit_s:g} s, got no end for a batch of {rows}; "
                    "write long Python loops with jax.lax.fori_loop or jax.lax.scan, pass large "
                    "arrays in params, or give it more time with "
                    f"limit_s={10 * self._limit_s:g}"
                ) from None
            self._programs[shapes] = program
        return self._programs[shapes]


@contextlib.contextmanager
def _with_nan() -> Iterator[None]:
    """Lets values be NaN or infinite in this thread. The rows beside the example's are."""
    with jax.debug_nans(False), jax.debug_infs(False):
        yield

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Runner`: the function on this machine, run as a loaded bundle runs it here.

A loop that goes on until all rows have converged never ends beside a row of NaN, and compiled code
cannot be stopped. Each run therefore has a thread of its own, and the caller waits for a bounded
time. The thread is a daemon, so it ends with the process.
"""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import jax
import numpy as np
from jax import export as jax_export

from dovetail_serve.arrays import converted
from dovetail_serve.exporting.caller import warn
from dovetail_serve.exporting.jaxpr import captures_floats, coarsest
from dovetail_serve.exporting.sharding import check_packed, mesh_of, on_mesh, replicated
from dovetail_serve.exporting.trace import Flow
from dovetail_serve.types import Platform

# Runs the function on this machine: inputs to outputs, as many rows as it is given.
Run = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
Result = TypeVar("Result")

# A run may take this time, and beyond it this multiple of the slowest time per row before.
_PATIENCE_S, _SLOWER = 60.0, 20


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
            "jax.lax.while_loop)"
        )


class Runner:
    """Runs a function of (weights, inputs). It compiles once for each shape.

    Weights are converted, and options of the compiler are applied, as the entry of this machine's
    platform says; without such an entry weights keep their dtype.

    Args:
        flow: The function of (weights, inputs).
        weights: Arrays by name. Sharded ones stay so.
        platforms: The platforms of the bundle.
        patience_s: Time that every run may take, in seconds. A run that takes 20 times as long per
            row as each one before, and this time on top, is given up.

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
        patience_s: float = _PATIENCE_S,
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
        self._patience_s = patience_s
        self._slowest_s: float | None = None  # per row

    def __call__(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs in host memory.

        Raises UnfinishedError for a run that does not end. Warns if the first run takes long.
        """
        return self._run(self._weights, arrays)

    def nudged(self, *, seed: int) -> Run:
        """Returns a run with weights and inputs that are changed by a rounding error each.

        It holds a copy of the weights, so keep one at a time.

        Args:
            seed: Seed of the signs of the changes, from 0.
        """
        moved = {
            name: self._nudge(array, seed, number)
            for number, (name, array) in enumerate(self._weights.items())
        }

        def run(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            inputs = {
                name: np.asarray(self._nudge(jax.numpy.asarray(array), seed, number))
                for number, (name, array) in enumerate(arrays.items(), start=len(moved))
            }
            return self._run(moved, inputs)

        return run

    def is_nudged(self, arrays: Mapping[str, np.ndarray]) -> bool:
        """Whether `nudged` changes any of the weights or of these inputs."""
        values = (*self._weights.values(), *arrays.values())
        return self.rounding is not None and any(_has_rounding(each.dtype) for each in values)

    def _nudge(self, value: jax.Array, seed: int, number: int) -> jax.Array:
        """Nudges floats; `number` counts arrays, so that each has signs of its own."""
        if self.rounding is None or not _has_rounding(value.dtype):
            return value
        # A weight of a coarser dtype than the arithmetic moves by an epsilon of its own.
        step = max(_eps(self.rounding), _eps(value.dtype))
        with _with_nan():
            moved = _nudge(value, jax.numpy.uint32(seed), jax.numpy.uint32(number), step=step)
        return jax.device_put(moved, value.sharding)

    def _run(
        self, weights: Mapping[str, jax.Array], arrays: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        placed = jax.device_put(dict(arrays), self._sharding)
        # Compiled here: options of JAX such as 64-bit types belong to the caller's thread.
        program = self._program(placed)
        rows = next((len(array) for array in arrays.values() if array.ndim), 1)
        started = time.perf_counter()

        def outputs() -> dict[str, np.ndarray]:
            with _with_nan():
                results = program(weights, placed)
            return {name: np.asarray(value) for name, value in results.items()}

        results = self._wait(_begin(outputs), rows)
        elapsed_s = (time.perf_counter() - started) / max(rows, 1)
        self._slowest_s = max(elapsed_s, self._slowest_s or 0.0)
        return results

    def _program(self, placed: Mapping[str, jax.Array]) -> jax.stages.Compiled:
        shapes = tuple(array.shape for array in placed.values())
        if shapes not in self._programs:
            traced = self._jitted.trace(self._weights, placed)
            # Accelerators may round products of float32 to TF32 or bfloat16.
            least = None if self.platform == "cpu" else "bfloat16"
            self.rounding = coarsest(traced.jaxpr, least=least)
            self.captures = captures_floats(traced.jaxpr)
            self._programs[shapes] = traced.lower().compile()
        return self._programs[shapes]

    def _wait(self, pending: Future[Result], rows: int) -> Result:
        if self._slowest_s is not None:
            limit_s = self._patience_s + _SLOWER * self._slowest_s * rows
            try:
                return pending.result(limit_s)
            except TimeoutError:
                raise UnfinishedError(rows, limit_s) from None
        try:
            return pending.result(self._patience_s)
        except TimeoutError:
            # Nothing tells how long the function takes.
            warn(
                f"fn has run for {self._patience_s:.0f} s on the example, beside padding of zeros, "
                "and goes on; a loop that ends when all rows have converged may not end"
            )
            return pending.result()


@contextlib.contextmanager
def _with_nan() -> Iterator[None]:
    """Lets values be NaN or infinite in this thread. The rows beside the example's are."""
    with jax.debug_nans(False), jax.debug_infs(False):
        yield


def _begin(work: Callable[[], Result]) -> Future[Result]:
    """Starts `work` in a daemon thread, which a process that ends does not wait for."""
    pending: Future[Result] = Future()

    def run() -> None:
        try:
            pending.set_result(work())
        except BaseException as error:  # handed to the thread that waits
            pending.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return pending


@functools.partial(jax.jit, static_argnames="step")
def _nudge(value: jax.Array, seed: jax.Array, number: jax.Array, *, step: float) -> jax.Array:
    """Returns floats multiplied by 1 plus or minus `step`, in one pass without other arrays."""
    index = jax.numpy.zeros(value.shape, "uint32")
    for axis, size in enumerate(value.shape):
        index = index * np.uint32(size) + jax.lax.broadcasted_iota("uint32", value.shape, axis)
    up = _mixed(index ^ _mixed(number ^ _mixed(seed + np.uint32(1)))) >> 31 == 0
    # In float32, 1 plus an epsilon of float64 is 1.
    wide = value.dtype if jax.numpy.finfo(value.dtype).bits >= 32 else "float32"
    factor = jax.numpy.where(up, 1 + step, 1 - step).astype(wide)
    return (value.astype(wide) * factor).astype(value.dtype)


def _mixed(values: Any) -> jax.Array:
    """Returns a hash of uint32, the `lowbias32` of https://nullprogram.com/blog/2018/07/31/."""
    values = (values ^ (values >> 16)) * np.uint32(0x7FEB352D)
    values = (values ^ (values >> 15)) * np.uint32(0x846CA68B)
    return values ^ (values >> 16)


def _has_rounding(dtype: Any) -> bool:
    """Whether values of this dtype are nudged.

    Those of 8 bits or fewer are not: their neighbours are 3 % to 100 % away, which is no rounding
    error of the arithmetic after them.
    """
    return jax.numpy.issubdtype(dtype, np.inexact) and jax.numpy.finfo(dtype).bits >= 16


def _eps(dtype: Any) -> float:
    return float(jax.numpy.finfo(dtype).eps)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Assembly`: joins the rows of a batch, pads them, runs the model, and divides the outputs.

Copies are made where memory would be shared, and nowhere else:

- Inputs are copied into one padded buffer, which the next batch uses again. JAX on CPU may read a
  NumPy array in place, so the buffer is written only after all outputs are in host memory. Inputs
  of one request that need no padding are passed as they are. Nobody's inputs are written.
- Outputs are copied for each request of a joined batch. A view would keep the whole batch in memory
  for as long as one caller keeps its rows, and callers could write into each other's. The outputs
  of a request that was alone in its batch are passed on as they are, and may be read-only.
"""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from dovetail_serve.errors import ExecutionError, RequestError
from dovetail_serve.loading.model import Model
from dovetail_serve.serving.queue import Request, Slice
from dovetail_serve.types import Array, HostFunction

Arrays = Mapping[str, Array]


@dataclasses.dataclass(slots=True, eq=False)
class Call:
    """The payload of a `Request`.

    Attributes:
        inputs: Arrays by name.
        future: Set when the last row is done, or with the error.
        outputs: Arrays by name; complete when the last row is done.
        mark: End of the last stage; the next one begins there.
        queue_s: Seconds in the queue, so far.
        pad_s: Seconds of assembly, so far.
        compute_s: Seconds of the program, so far.
        batch_rows: Rows of the last batch.
        padded_rows: Rows of that batch with padding.
    """

    inputs: Arrays
    future: asyncio.Future[None]
    mark: float
    outputs: dict[str, np.ndarray] | None = None
    queue_s: float = 0.0
    pad_s: float = 0.0
    compute_s: float = 0.0
    batch_rows: int = 0
    padded_rows: int = 0


@dataclasses.dataclass(slots=True, frozen=True)
class Computed:
    """The end of a batch. Outputs are in the calls.

    Attributes:
        errors: Requests without a result, with their errors.
        padded_at: Start of the program, by `time.perf_counter`.
        computed_at: Arrival of its outputs in host memory, by the same clock.
        rows: Rows of the batch.
        padded_rows: Rows of the batch with padding.
    """

    errors: Mapping[Request, RequestError]
    padded_at: float
    computed_at: float
    rows: int
    padded_rows: int


class Assembly:
    """Runs the batches of one model, one at a time.

    Args:
        model: The loaded model.
        plan: Returns the batch sizes to run for a number of rows.
        finite: Answer rows with NaN or infinities with `ExecutionError`.
    """

    def __init__(
        self, model: Model, plan: Callable[[int], tuple[int, ...]], *, finite: bool = False
    ) -> None:
        self._model = model
        self._plan = plan
        self._finite = finite
        self._before = model.manifest.before
        self._after = model.manifest.after
        self._buffers: dict[str, np.ndarray] = {}
        # Outputs of a sharded model are ready when the first device is. The others may still read
        # the inputs, so their memory is not used again.
        self._reuse = model.manifest.mesh is None

    def run(self, batch: Sequence[Slice]) -> Computed:
        """Runs a batch and stores the outputs in its calls.

        Args:
            batch: Slices of different requests. Their payloads are calls.

        Returns:
            The end of the batch.

        Raises:
            Exception: The model failed; no row has a result.
        """
        errors: dict[Request, RequestError] = {}
        by_request = [_inputs(piece) for piece in batch]
        if self._before is not None:
            results = by_row(self._before, self._model.before, by_request, _counts(batch))
            batch, by_request = _succeeded(batch, results, errors)
        rows = sum(_counts(batch))
        if not rows:
            now = time.perf_counter()
            return Computed(errors, padded_at=now, computed_at=now, rows=0, padded_rows=0)
        sizes = self._plan(rows)
        padded_rows = sum(sizes)
        inputs = self._join(by_request, rows, sizes)
        padded_at = time.perf_counter()
        outputs = self._execute(inputs, sizes)
        computed_at = time.perf_counter()
        alone = len(batch) == 1 and rows == padded_rows
        self._divide(batch, [outputs] if alone else _rows(outputs, _counts(batch)), errors)
        return Computed(errors, padded_at, computed_at, rows, padded_rows)

    def _join(self, by_request: Sequence[Arrays], rows: int, sizes: tuple[int, ...]) -> Arrays:
        """Returns the rows of all requests, padded with zeros."""
        padded_rows = sum(sizes)
        if len(by_request) == 1 and rows == padded_rows:
            return {name: np.asarray(value) for name, value in by_request[0].items()}
        joined = {}
        for name, tensor in self._model.manifest.signature.inputs.items():
            buffer = self._buffer(name, tensor.sized(padded_rows), tensor.dtype)
            np.concatenate([arrays[name] for arrays in by_request], out=buffer[:rows])  # type: ignore[arg-type]
            buffer[rows:] = 0
            joined[name] = buffer
        return joined

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < shape[0]:
            buffer = np.empty(shape, jax.numpy.dtype(dtype))
            if self._reuse:
                self._buffers[name] = buffer
        return buffer[: shape[0]]

    def _execute(self, inputs: Arrays, sizes: tuple[int, ...]) -> Mapping[str, np.ndarray]:
        model = self._model
        if not model.batch_sizes:
            return model.execute(inputs, None)
        if len(sizes) == 1:
            return model.execute(inputs, sizes[0])
        chunks, start = [], 0
        for size in sizes:
            chunk = {name: value[start : start + size] for name, value in inputs.items()}
            chunks.append(model.execute(chunk, size))
            start += size
        return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}

    def _divide(
        self,
        batch: Sequence[Slice],
        by_request: Sequence[Arrays],
        errors: dict[Request, RequestError],
    ) -> None:
        """Stores the outputs of each slice in its call."""
        if self._finite:
            results = [_not_finite(outputs) or outputs for outputs in by_request]
            batch, by_request = _succeeded(batch, results, errors)
        # The model's own arrays can be handed on where nobody else has rows of them.
        owned = len(by_request) == 1 and self._after is None
        if self._after is not None and batch:
            results = by_row(self._after, self._model.after, by_request, _counts(batch))
            batch, by_request = _succeeded(batch, results, errors)
        for (request, start, stop), outputs in zip(batch, by_request, strict=True):
            call: Call = request.payload
            if stop - start < request.rows:
                _store(call, outputs, request.rows, start)
            else:
                call.outputs = {
                    name: np.asarray(value) if owned else np.array(value)
                    for name, value in outputs.items()
                }


def by_row(
    function: HostFunction,
    call: Callable[[dict[str, Any], int], Arrays],
    by_request: Sequence[Arrays],
    counts: Sequence[int],
) -> list[Arrays | RequestError]:
    """Applies a host function to the joined rows of several requests.

    If it fails, it is applied to each request, so that one with bad rows fails alone.

    Args:
        function: The declaration of the function.
        call: Takes arrays and their number of rows, and returns arrays with as many rows.
        by_request: Arrays of each request.
        counts: Rows of each request.

    Returns:
        For each request its results, or the error.
    """
    joined = {
        name: first if len(by_request) == 1 else np.concatenate([a[name] for a in by_request])
        for name, first in by_request[0].items()
    }
    try:
        return list(_rows(call(joined, sum(counts)), counts))
    except Exception as error:
        if len(by_request) == 1:
            return [_failure(function, error)]
    return [
        by_row(function, call, [arrays], [count])[0]
        for arrays, count in zip(by_request, counts, strict=True)
    ]


def _failure(function: HostFunction, error: Exception) -> RequestError:
    if isinstance(error, RequestError):
        return error
    failure = ExecutionError(
        f"the host function {function.name!r} must succeed, got {type(error).__name__}: {error}; "
        "correct the inputs, or let the function raise RequestError for inputs that it refuses"
    )
    failure.__cause__ = error
    return failure


def _succeeded(
    batch: Sequence[Slice],
    results: Sequence[Arrays | RequestError],
    errors: dict[Request, RequestError],
) -> tuple[list[Slice], list[Arrays]]:
    """Returns the slices and results without an error. The others go to `errors`."""
    slices, arrays = [], []
    for piece, result in zip(batch, results, strict=True):
        if isinstance(result, RequestError):
            errors[piece.request] = result
        else:
            slices.append(piece)
            arrays.append(result)
    return slices, arrays


def _counts(batch: Sequence[Slice]) -> list[int]:
    return [stop - start for _, start, stop in batch]


def _rows(arrays: Arrays, counts: Sequence[int]) -> list[Arrays]:
    """Returns views of successive rows."""
    views, start = [], 0
    for count in counts:
        stop = start + count
        views.append({name: value[start:stop] for name, value in arrays.items()})
        start = stop
    return views


def _inputs(piece: Slice) -> Arrays:
    request, start, stop = piece
    inputs = request.payload.inputs
    if stop - start == request.rows:
        return inputs
    return {name: np.asarray(value)[start:stop] for name, value in inputs.items()}


def _store(call: Call, rows: Arrays, total: int, start: int) -> None:
    """Copies some rows of a divided request into its outputs."""
    if call.outputs is None:
        call.outputs = {k: np.empty((total, *v.shape[1:]), v.dtype) for k, v in rows.items()}
    for name, value in rows.items():
        call.outputs[name][start : start + len(value)] = value


def _not_finite(rows: Arrays) -> ExecutionError | None:
    for name, value in rows.items():
        if jax.numpy.issubdtype(value.dtype, np.inexact) and not np.isfinite(value).all():
            count = int(value.size - np.isfinite(value).sum())
            return ExecutionError(
                f"outputs must be finite, got {count} NaN or infinite values in {name!r}; correct "
                "the inputs, or start the server with finite=False"
            )
    return None

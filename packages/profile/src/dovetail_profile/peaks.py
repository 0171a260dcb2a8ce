# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The limits of one device: rates of products and of its memory, measured or from a data sheet.

Products of square matrices grow until one takes long enough; the best rate counts. The memory is
measured as by STREAM (McCalpin 1995): `y = a x` and `y = x + a y` on arrays larger than the caches,
into existing storage: fresh pages would take time.
"""

import dataclasses
import datetime
import functools
import json
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

_SIDES = (512, 1024, 2048, 4096, 8192)  # rows of the matrices
_STREAM_BYTES = (1 << 26, 1 << 27, 1 << 28)  # of each array: beyond the caches of most machines
_LONG_S = 0.05  # of a run: all cores are at work, and larger arrays have the same rate
_BATCH_S = 0.02  # of runs between two looks at the clock: a launch of 10 us is no error then
_BATCHES, _CASE_S = 5, 0.4  # at most so many looks and seconds of one size, but at least two


@runtime_checkable
class Device(Protocol):
    """A `jax.Device`. Files of peaks are read without JAX."""

    platform: str
    device_kind: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peaks:
    """The highest rates of one device.

    Attributes:
        device_kind: As `kind_of` names it: JAX's name, or the model of a processor.
        flops_per_s: FLOP/s of products of matrices, by dtype: "float32", "bfloat16".
        bytes_per_s: Bytes read and written by the memory in a second.
        spreads: By dtype and "bytes", the median of the repeats below the best, as a share of it.
        measured: Date and time (ISO 8601, UTC). Empty for a data sheet, as are the spreads.
        devices: Devices of the process during the measurement. Those of one CPU share it.

    Raises:
        ValueError: A rate is not positive and finite.

    Example:

        >>> h200 = Peaks(
        ...     device_kind="NVIDIA H200", flops_per_s={"bfloat16": 989e12}, bytes_per_s=4.8e12
        ... )
        >>> round(h200.flops_per_s["bfloat16"] / h200.bytes_per_s)  # FLOP for each byte
        206
    """

    device_kind: str
    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    spreads: Mapping[str, float] = dataclasses.field(default_factory=dict)
    measured: str = ""
    devices: int = 1

    def __post_init__(self) -> None:
        for name, rate in {**self.flops_per_s, "bytes_per_s": self.bytes_per_s}.items():
            if not (isinstance(rate, int | float) and 0 < rate < math.inf):
                raise ValueError(
                    f"a rate must be a positive number per second, got {name}={rate!r}; write for "
                    "example flops_per_s={'float32': 1e12}, bytes_per_s=1e11"
                )

    def __hash__(self) -> int:
        return hash((self.device_kind, self.bytes_per_s))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a JSON file for `load`."""
        Path(path).write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device_kind: str | None = None) -> "Peaks":
        """Reads a file of `save`.

        Args:
            path: The file.
            device_kind: The expected kind. Default: that of the first device of this process.

        Raises:
            ValueError: The file has no peaks, or those of another kind of device.
        """
        try:
            peaks = cls(**json.loads(Path(path).read_text()))
        except (TypeError, AttributeError, ValueError) as error:
            raise ValueError(
                f"a file of peaks must be what Peaks.save wrote, got {os.fspath(path)!r} "
                f"({error}); write it by measure_peaks().save(path)"
            ) from error
        if peaks.device_kind != (kind := device_kind or kind_of(_first())):
            raise ValueError(
                f"peaks must be of the device that is asked about, {kind!r}, got those of "
                f"{peaks.device_kind!r} in {os.fspath(path)!r}; measure them by measure_peaks(), "
                f"or pass device_kind={peaks.device_kind!r} to read them for that device"
            )
        return peaks


def measure_peaks(
    *, dtypes: Sequence[str] = ("float32", "bfloat16"), device: Device | None = None
) -> Peaks:
    """Measures the rates of one device, in less than ten seconds.

    Products run at JAX's default precision: TF32 for float32 on many GPUs. The device should have
    no other work.

    Args:
        dtypes: Dtypes of the products.
        device: The device. Default: the first one of this process.

    Raises:
        ValueError: There is no dtype, or not all are floating-point dtypes.
    """
    import jax
    import jax.numpy as jnp

    names = [dtypes] if isinstance(dtypes, str) else dtypes
    if not names or not all(jnp.issubdtype(jnp.dtype(n), jnp.floating) for n in names):
        raise ValueError(
            f"dtypes must name floating-point dtypes, got dtypes={dtypes!r}; write for example "
            'dtypes=("float32", "bfloat16")'
        )
    device = device or _first()
    with jax.default_device(device):
        best = {name: _largest(_products(jnp.dtype(name))) for name in names}
        rate, _ = best["bytes"] = _largest(_streams())
    return Peaks(
        device_kind=kind_of(device),
        flops_per_s={name: best[name][0] for name in names},
        bytes_per_s=rate,
        spreads={name: spread for name, (_, spread) in best.items()},
        measured=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        devices=sum(d.platform == device.platform for d in jax.local_devices()),
    )


def kind_of(device: Device) -> str:
    """Returns JAX's name of a device's kind; of a CPU, the processor's name and its cores."""
    if device.platform != "cpu":
        return device.device_kind
    file = Path("/proc/cpuinfo")  # of Linux
    match = re.search(r"model name\s*: (.+)", file.read_text() if file.exists() else "")
    return f"{match[1] if match else device.device_kind}, {os.cpu_count()} cores"


def _first() -> Device:
    import jax

    return jax.local_devices()[0]


# The work of one run, the run, and its first argument. The next argument is the result.
Case = tuple[float, Callable[[Any], Any], Any]


def _products(dtype: Any) -> Iterator[Case]:
    import jax
    import jax.numpy as jnp

    product = jax.jit(jnp.dot)
    for n in _SIDES:
        # Products of such a matrix keep their size: no value becomes 0, denormal or infinite.
        x = (jax.random.normal(jax.random.key(0), (n, n)) / n**0.5).astype(dtype)
        yield 2.0 * n**3, functools.partial(product, x), x


def _streams() -> Iterator[Case]:
    import jax
    import jax.numpy as jnp

    into = functools.partial(jax.jit, donate_argnums=1, keep_unused=True)
    scale, triad = into(lambda x, y: 0.5 * x), into(lambda x, y: x + 0.5 * y)
    for size in _STREAM_BYTES:
        x = jnp.ones(size // 4, jnp.float32)
        yield 2.0 * size, functools.partial(scale, x), x + 1
        yield 3.0 * size, functools.partial(triad, x), x + 1


def _largest(cases: Iterator[Case]) -> tuple[float, float]:
    """Returns the largest rate of growing cases, and its spread."""
    best = (0.0, 0.0)
    for work, run, value in cases:
        times = _times(run, value)
        shortest = min(times)
        best = max(best, (work / shortest, 1 - shortest / statistics.median(times)))
        if shortest > _LONG_S:
            break
    return best


def _times(run: Callable[[Any], Any], value: Any) -> list[float]:
    """Returns seconds of a run, several times, each the mean over a batch of runs."""
    value = run(value).block_until_ready()
    begun = time.perf_counter()
    value = run(value).block_until_ready()
    first = time.perf_counter() - begun
    count = math.ceil(_BATCH_S / first)
    times = [first] if count == 1 else []
    while len(times) < 2 or (len(times) < _BATCHES and time.perf_counter() - begun < _CASE_S):
        start = time.perf_counter()
        for _ in range(count):
            value = run(value)
        value.block_until_ready()
        times.append((time.perf_counter() - start) / count)
    return times

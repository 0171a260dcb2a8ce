# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Choices by measurement: the tuning file that dispatch reads, and records of calls.

The order of preference of an operation is fixed, from measurements on some devices. A tuning file
holds, for one device, the fastest implementation of each call that `tune` measured. A call takes
its line if operation, shapes, dtypes, options, device and versions are equal.

- `impl=` of a call wins over the file, and so does a refusal.
- A file that cannot be used costs speed, not the program: one warning, and `explain` says why.
- Choices are made while JAX traces. A compiled program keeps its own under another file.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from dovetail_kernels._explained import Explained

VARIABLE = "DOVETAIL_KERNELS_TUNING"
_LOG = logging.getLogger(__name__)
# Distributions whose code runs, by platform. Those that are not installed are left out.
_COMPUTE = {
    "cpu": ("dovetail-kernels-cpu",),
    "gpu": (
        *("jax-cuda12-plugin", "nvidia-cudnn-cu12", "nvidia-cublas-cu12"),
        *("jax-cuda13-plugin", "nvidia-cudnn-cu13", "nvidia-cublas"),
    ),
    "tpu": ("libtpu",),
}


class DamagedFile(ValueError):
    """A file of tunings or calls that is none, with the exit code of the command."""

    exit_code = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordedCall:
    """A call of an operation: its shapes, dtypes and options.

    Attributes:
        operation: Name of the operation.
        call: The call, such as `implementations.AttentionCall`.
    """

    operation: str
    call: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class TunedCall:
    """The measurement of one call.

    Attributes:
        operation: Name of the operation.
        call: Shapes, dtypes and options.
        implementation: The one that runs: the fastest, or the default if none beat it.
        default: The first in order of preference.
        ms: Median milliseconds of each implementation, by "forward" and "gradients" (both passes).
        spread: Relative spread of these times; of the default also its difference to itself.
        runner_up: The next fastest, or None.
        ratio: Its time over that of `implementation`.
        excluded: Implementations that did not take part, each with the reason.
    """

    operation: str
    call: Mapping[str, Any]
    implementation: str
    default: str
    ms: Mapping[str, Mapping[str, float]]
    spread: Mapping[str, Mapping[str, float]]
    runner_up: str | None
    ratio: float | None
    excluded: Mapping[str, str]

    @property
    def reason(self) -> str:
        """The choice in words."""
        if self.default not in self.ms:
            return f"{self.default} stays, not measured: {self.excluded.get(self.default)}"
        passes = self.ms[self.default]
        last = list(passes)[-1]
        own, before = self.ms[self.implementation][last], passes[last]
        if self.implementation == self.default:
            return f"{own:.3g} ms, and no other is faster by more than the spread"
        return f"{own:.3g} ms against {before:.3g} of {self.default}"


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Tuning(Explained):
    """Measurements of calls on one device. Print it to read it as a table.

    Attributes:
        platform: "cpu", "gpu" or "tpu".
        kind: Kind of the device. For a CPU its model and number of cores.
        versions: Versions of the libraries that compute.
        date: Day of the measurement.
        rows: The calls.
        notes: Calls that were not measured, in words.
        path: The file. "" before it is written.
        digest: First 16 digits of the file's SHA-256.
    """

    platform: str
    kind: str
    versions: Mapping[str, str]
    date: str
    rows: tuple[TunedCall, ...]
    notes: tuple[str, ...] = ()
    path: str = dataclasses.field(default="", repr=False)
    digest: str = dataclasses.field(default="", repr=False)

    @functools.cached_property
    def by_call(self) -> Mapping[tuple[str, str], TunedCall]:
        """Rows by operation and call."""
        return {(row.operation, _text(row.call)): row for row in self.rows}

    def unusable(self, platform: str, kind: str) -> str | None:
        """Returns why the file says nothing about a device here, or None.

        Args:
            platform: The device's platform.
            kind: Its kind in JAX.
        """
        words = device_words(platform, kind)
        if (self.platform, self.kind) != (platform, words):
            return f"it is of {self.platform} ({self.kind}), and this is {platform} ({words})"
        present = versions(platform)
        for name in sorted({*present, *self.versions}):
            if present.get(name) != self.versions.get(name):
                before, now = self.versions.get(name, "none"), present.get(name, "none")
                return f"it is of {name} {before}, and this is {now}"
        return None

    def _summary(self) -> str:
        return f"tuning of {len(self.rows)} calls on {self.kind}"

    def __str__(self) -> str:
        lines = [f"{self.kind}, jax {self.versions.get('jax')}, {self.date}"]
        for row in self.rows:
            sizes = {
                name: value
                for name, value in row.call.items()
                if value is not None and value is not False
            }
            words = ", ".join(f"{name}={value}" for name, value in sizes.items())
            lines += [f"{row.operation}: {row.implementation}, {row.reason}", f"  {words}"]
            if row.runner_up:
                lines.append(f"  next {row.runner_up}, {row.ratio:.3g} times as long")
            lines += [f"  without {name}: {reason}" for name, reason in row.excluded.items()]
        return "\n".join([*lines, *self.notes])


_scope: ContextVar[tuple[Tuning | None] | None] = ContextVar("tuning", default=None)
_records: ContextVar[tuple[dict[Any, RecordedCall], ...]] = ContextVar("records", default=())


@contextlib.contextmanager
def tuning(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """Takes implementations from a tuning file in the block, in this thread.

    The environment variable DOVETAIL_KERNELS_TUNING does so for a whole process, which reads the
    file once. Choices are made while JAX traces: a program that is compiled already keeps its own.

    Args:
        path: A file that `tune` has written. None: no file, also not that of the environment.

    Example:

        >>> from dovetail_kernels import tuning, tuning_digest
        >>> with tuning(None):
        ...     print(tuning_digest())
        None
    """
    token = _scope.set((None if path is None else _usable(os.fspath(path)),))
    try:
        yield
    finally:
        _scope.reset(token)


def tuning_digest() -> str | None:
    """First 16 digits of the SHA-256 of the tuning file in use; None without a file.

    `dovetail_runs` records that of DOVETAIL_KERNELS_TUNING with each launch.
    """
    return None if (used := _in_use()) is None else used.digest


@contextlib.contextmanager
def record_calls(out: str | os.PathLike[str] | None = None) -> Iterator[list[RecordedCall]]:
    """Collects the calls that programs make when they are traced in the block, for `tune`.

    A function that JAX has traced already makes no calls. Calls that `tune` cannot measure are left
    out: with `impl`, over several devices, or with symbolic sizes.

    Args:
        out: A file for the command: `python -m dovetail_kernels tune --calls FILE`. None for none.

    Example:

        >>> import jax
        >>> from dovetail_kernels import attention, record_calls
        >>> q = jax.ShapeDtypeStruct((1, 128, 4, 64), "float32")
        >>> with record_calls() as calls:
        ...     _ = jax.eval_shape(attention, q, q, q)
        >>> [each.operation for each in calls]
        ['attention']
    """
    collected: dict[Any, RecordedCall] = {}
    calls: list[RecordedCall] = []
    token = _records.set((*_records.get(), collected))
    try:
        yield calls
    finally:
        _records.reset(token)
        calls += collected.values()
    if out is not None:
        listed = [{"operation": each.operation, "call": facts(each.call)} for each in calls]
        Path(out).write_text(
            json.dumps({"calls": listed}, indent=1, default=float) + "\n", encoding="utf-8"
        )


def record(operation: str, call: Any) -> None:
    """Adds a call to the records that are open."""
    for collected in _records.get():
        collected.setdefault((operation, call), RecordedCall(operation=operation, call=call))


def look_up(operation: str, call: Any) -> tuple[str | None, str] | None:
    """Returns the implementation for a call by the tuning file in use, and the reason in words.

    Args:
        operation: Name of the operation.
        call: The call, with its device.

    Returns:
        None if there is no file, or no line for the call. (None, why) for a file of another device
        or of other versions.
    """
    used = _in_use()
    if used is None:
        return None
    reason = used.unusable(call.device.platform, call.device.kind)
    if reason is not None:
        _warn(used.path, reason)
        return None, f"tuning file {used.path} is ignored: {reason}"
    row = used.by_call.get((operation, _key(call)))
    if row is None:
        return None
    source = f"tuning file {used.path}, {used.kind}, jax {used.versions['jax']}"
    return row.implementation, f"measured, {row.reason} ({source})"


def facts(call: Any) -> dict[str, Any]:
    """Returns a call as JSON has it, without its device."""
    fields = {field.name: getattr(call, field.name) for field in dataclasses.fields(call)}
    del fields["device"]
    return {name: v.name if isinstance(v, np.dtype) else v for name, v in fields.items()}


def read_tuning(path: str | os.PathLike[str]) -> Tuning:
    """Reads a tuning file.

    Raises:
        OSError: There is no such file.
        DamagedFile: It is none, or damaged.
    """
    data = Path(path).read_bytes()
    try:
        values = json.loads(data)
        rows = tuple(TunedCall(**row) for row in values.pop("rows"))
        digest = hashlib.sha256(data).hexdigest()[:16]
        values["notes"] = tuple(values["notes"])
        read = Tuning(rows=rows, path=os.fspath(path), digest=digest, **values)
        read.versions["jax"]
        for row in rows:
            _check(row)
        assert len(read.by_call) == len(rows)
    except (ValueError, TypeError, KeyError, AttributeError, AssertionError) as error:
        raise DamagedFile(
            f"a tuning file must be as tune wrote it, got {os.fspath(path)!r} with "
            f"{type(error).__name__}: {error}. Write it again with python -m dovetail_kernels tune."
        ) from error
    return read


def _check(row: TunedCall) -> None:
    """Formats what `look_up` will, so that an error is one of reading."""
    if {row.implementation, row.default} - {*row.ms, *row.excluded}:
        raise ValueError(f"implementation={row.implementation!r} has no time")
    assert isinstance(row.reason, str)


def device_words(platform: str, kind: str) -> str:
    """Returns a device's kind. JAX calls each CPU "cpu": here it is its model."""
    return f"{_cpu()}, {os.cpu_count()} cores" if platform == "cpu" else kind


@functools.cache
def versions(platform: str) -> Mapping[str, str]:
    """Returns the installed libraries that compute on a platform, with their versions."""
    names = ("dovetail-kernels", "jax", "jaxlib", "tokamax", *_COMPUTE.get(platform, ()))
    installed = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


@functools.cache
def _cpu() -> str:
    with contextlib.suppress(OSError, StopIteration):  # Linux
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(n for n in lines if n.startswith("model name")).partition(": ")[2]
    return os.uname().machine if hasattr(os, "uname") else "cpu"


def is_in_use() -> bool:
    """Tests whether calls are looked up or recorded."""
    return _scope.get() is not None or bool(_records.get()) or VARIABLE in os.environ


def _in_use() -> Tuning | None:
    scoped = _scope.get()
    if scoped is not None:
        return scoped[0]
    path = os.environ.get(VARIABLE)
    return _of_environment(path) if path else None


def _usable(path: str) -> Tuning | None:
    try:
        return read_tuning(path)
    except (OSError, ValueError) as error:
        _warn(path, str(error))
        return None


_of_environment = functools.cache(_usable)


@functools.cache  # once
def _warn(path: str, reason: str) -> None:
    _LOG.warning("tuning file %s is ignored: %s", path, reason)


@functools.lru_cache(maxsize=1024)
def _key(call: Any) -> str:
    return _text(facts(call))


def _text(call: Mapping[str, Any]) -> str:
    return json.dumps(call, sort_keys=True, default=float)  # a number of NumPy

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Captures: a block of a program under JAX's profiler, which belongs to the process.

The trace goes through files: `jax.profiler.start_trace` is public on all versions. Sessions in
memory are not, and hide the programs.
"""

import contextlib
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np

from dovetail_profile.compile_log import CompileLog
from dovetail_profile.live_programs import add_live_programs
from dovetail_profile.profile import Profile
from dovetail_profile.trace.compilations import save_compilations
from dovetail_profile.trace.files import load
from dovetail_profile.trace.recording import Recording
from dovetail_profile.trace.selection import Selection

_LEVELS = (0, 1, 2, 3)  # of the host's events: none, the program's, JAX's, everything
_RUNS = "plugins/profile"  # of a folder of traces
# Cost of tracing an instruction on a CPU: 300,000 runs in a loop, with and without a trace, on two
# versions of JAX (1.5 and 1.7).
_EVENT_US = 1.6
# Packages on the stack between a capture and its caller; two check types.
_BETWEEN = (__name__.partition(".")[0], "contextlib", "jaxtyping", "beartype")

_lock = threading.Lock()
_holder: str | None = None  # file and line of the open capture


class Capture(Profile):
    """The profile of a block. It answers after the end of the block."""

    def __init__(self) -> None:
        """Waits for `_end`."""

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__") or "_recording" in self.__dict__:
            raise AttributeError(f"a capture has no attribute {name!r}")
        raise RuntimeError(
            "a capture must have ended before it answers, and was asked within its block: ask it "
            "after the `with` block"
        )

    def _end(self, recording: Recording) -> None:
        super().__init__(recording)


@contextlib.contextmanager
def capture(
    *,
    steps: range | None = None,
    host_level: int = 2,
    python: bool = False,
    keep: Path | str | None = None,
) -> Iterator[Capture]:
    """Profiles a block of a program, one at a time in a process.

    Compiled functions return before devices have finished: call `jax.block_until_ready` on the last
    results within the block, or the rest of the work is missing. The first call of a function
    compiles it: call it before the block, or leave the first step out of `steps`.

    A program in another process, with `jax.profiler.start_server(PORT)`, is traced by
    `python -m jax.collect_profile PORT MILLISECONDS --log_dir FOLDER --no_perfetto_link` (xprof)
    and `read(FOLDER)`, without a log of compilations.

    Args:
        steps: Numbers of `jax.profiler.StepTraceAnnotation`. Only work begun within these steps
            counts; a step lasts until the next one begins. None: everything.
        host_level: Events of the host: 0 none, 1 annotations of the program, 2 also the calls of
            JAX, 3 everything. On a CPU, instructions are events of the host: 0 shows none.
        python: Trace each call of a Python function too. It slows Python down.
        keep: A folder without a trace, to keep this one for `read`. None: nothing is kept.

    Yields:
        The profile. It answers after the block, also after an exception.

    Raises:
        ValueError: An option is out of range.
        FileExistsError: `keep` has a trace.
        RuntimeError: Something else traces this process.

    Example:

        >>> import jax, jax.numpy as jnp
        >>> f = jax.jit(lambda x: jnp.tanh(x @ x).sum())
        >>> with capture() as p:
        ...     y = f(jnp.ones((64, 64))).block_until_ready()
        >>> print(p.ops().top(5))  # doctest: +SKIP
    """
    _check(steps, host_level, keep)
    with _held(_caller()), contextlib.ExitStack() as stack:
        folder = Path(keep or stack.enter_context(tempfile.TemporaryDirectory()))
        profile, log = Capture(), CompileLog()
        _start(folder, host_level, python)
        try:
            with log.opened():
                yield profile
        finally:
            pending = _pending()
            _stop()
            recording = _load(folder, log)
            recording.add_notes([*pending, *_overhead(recording)])
            if steps is not None:
                recording.add_notes(_absent(recording, steps))
                recording = Selection(recording, steps)
            profile._end(recording)


def _check(steps: range | None, host_level: int, keep: Path | str | None) -> None:
    if host_level not in _LEVELS:
        raise ValueError(f"host_level must be one of {_LEVELS}, got host_level={host_level!r}")
    if steps is not None and not isinstance(steps, range):
        raise TypeError(f"steps must be a range, got steps={steps!r}: type steps=range(10, 15)")
    if steps is not None and not (steps and host_level):
        reason = "steps are events of the host" if steps else "it must have a number"
        raise ValueError(f"got steps={steps!r} with host_level={host_level}: {reason}")
    if keep is not None:
        check_folder(keep)


def check_folder(keep: Path | str) -> None:
    """Raises FileExistsError for a folder with a trace: none is written over."""
    if any(Path(keep, _RUNS).glob("*")):
        raise FileExistsError(
            f"keep must be a folder without a trace, got keep={str(keep)!r}: name another"
        )


@contextlib.contextmanager
def _held(caller: str) -> Iterator[None]:
    """Claims the profiler of this process among captures."""
    global _holder
    with _lock:
        if _holder is not None:
            raise RuntimeError(
                f"one capture at a time can be open in a process, that of {_holder} is: end it "
                "before, or ask it"
            )
        _holder = caller
    try:
        yield
    finally:
        _holder = None


def _caller() -> str:
    """Returns file and line of the code around a capture."""
    frame = sys._getframe()
    while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _start(folder: Path, host_level: int, python: bool) -> None:
    import jax

    options = jax.profiler.ProfileOptions()
    options.host_tracer_level, options.python_tracer_level = host_level, int(python)
    try:
        jax.profiler.start_trace(folder, profiler_options=options)
    except RuntimeError as error:
        raise RuntimeError(
            "a capture must be the only trace of its process, but jax.profiler traces it: "
            "jax.profiler.start_trace or jax.profiler.trace was called, by this program or by a "
            f"hook of its trainer; end that trace before ({error})"
        ) from error


def _stop() -> None:
    import jax

    try:
        jax.profiler.stop_trace()
    except RuntimeError as error:
        raise RuntimeError(
            "a capture must end its trace itself, but jax.profiler.stop_trace was called within "
            f"its block: leave that call out ({error})"
        ) from error


def _pending() -> list[str]:
    """Returns a warning about arrays still in computation."""
    import jax

    count = 0
    for array in jax.live_arrays():
        with contextlib.suppress(RuntimeError):  # another thread deletes it
            count += not array.is_ready()
    if not count:
        return []
    return [
        f"Devices still worked when the block ended (arrays that were not ready: {count}), and the "
        "rest of that work is missing: call jax.block_until_ready on the last results within it."
    ]


def _load(folder: Path, log: CompileLog) -> Recording:
    """Completes the trace in a folder, and reads it."""
    recording = load(folder)
    (file,) = folder.glob(f"{_RUNS}/*/*.xplane.pb")
    save_compilations(file, log.compilations)
    if add_live_programs(file, recording):
        recording = load(folder)
    _ = recording.compilations  # read now: the folder may not stay
    return recording


def _overhead(recording: Recording) -> list[str]:
    """Returns a note on the cost of tracing, if the device is the CPU: it traces itself."""
    runs = recording.operations
    planes = [plane.name for space in recording.spaces for plane in space.planes]
    if not len(runs) or any(name.startswith("/device:") for name in planes):
        return []
    count = np.bincount(runs.lane)
    busy_us = np.bincount(runs.lane, weights=runs.self_ps / 1e6)
    lane = int(count.argmax())
    share = min(1.0, count[lane] * _EVENT_US / busy_us[lane]) if busy_us[lane] else 1.0
    return [
        f"{len(runs):,} runs of instructions were traced. Each costs its thread about {_EVENT_US} "
        f"us, which its times contain: {share:.1%} of the thread with the most."
    ]


def _absent(recording: Recording, steps: range) -> list[str]:
    """Returns a warning if the trace has none of the steps."""
    present = np.unique(recording.spans.step[recording.spans.step >= 0]).tolist()
    if any(step in steps for step in present):
        return []
    known = f"{present[0]} to {present[-1]}" if present else "none"
    return [
        f"No step of steps={steps} was traced, so the tables are empty. Steps of "
        f"jax.profiler.StepTraceAnnotation in the trace: {known}."
    ]

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Launches of a run, `launches.jsonl`: time, command, commit, versions and devices of each.

A launch has two lines: one at its start, one at its end. A killed launch has no second line, and
its lock is free.
"""

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dovetail_runs.events import append, now
from dovetail_runs.metrics.writer import Writer, checked_step
from dovetail_runs.record import machine, media

FILE = "launches.jsonl"
OUTCOMES = ("finished", "interrupted", "failed")


@dataclass(kw_only=True)
class Launch:
    """A launch under way, and the sink of its metrics.

    `with run.launch() as launch:` records its end with the block. In a notebook, `finish` does. It
    is a `Sink` of dovetail-train: pass it in `fit(sinks=[launch])`.

    Attributes:
        outcome: Outcome to record if the block ends without an error: "finished", or "interrupted"
            for a run that was stopped on request and will go on.
    """

    outcome: str = "finished"
    _metrics: Path | None = field(default=None, repr=False)
    _writer: Writer | None = field(default=None, repr=False)
    _media: Writer | None = field(default=None, repr=False)
    _file: Path | None = field(default=None, repr=False)
    _ended: bool = field(default=False, repr=False)
    _lock: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False)

    def __enter__(self) -> "Launch":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.finish()
            return
        with self._lock:
            # Where the disk is what failed, the error under way says more than another one.
            with contextlib.suppress(OSError):
                self.close()
            with contextlib.suppress(OSError):
                self._end(failure(error, self.outcome))

    def finish(self) -> None:
        """Records the end with `outcome`, and frees the run. A later call does nothing.

        Raises:
            ValueError: The outcome is unknown. The end is then "failed".
        """
        with self._lock:
            self.close()
            try:
                end = ending(self.outcome)
            except ValueError as error:
                self._end(failure(error, "failed"))
                raise
            self._end(end)

    def _end(self, event: Mapping[str, Any]) -> None:
        if self._file is not None:
            append(self._file, event)
        self._file = self._writer = self._media = self._metrics = None
        self._ended = True

    def write(self, step: int, scalars: Mapping[str, Any]) -> None:
        """Appends scalars to the metrics of the run. Processes other than 0 write nothing.

        Several calls for one step are merged. A killed process loses no line that was written.

        Args:
            step: Number of the step, from 0 on. It must not fall within a launch.
            scalars: Numbers by name, or arrays of no dimension. NaN and infinities are kept.

        Raises:
            TypeError: The step is no whole number, or a value no number.
            ValueError: The step falls, or a scalar is called step, generation or time_s.
            RuntimeError: The launch has ended.
        """
        if self._under_way() and self._metrics is not None:
            self._writer = self._writer or Writer(self._metrics)
            self._writer.write(step, scalars)

    def write_text(self, step: int, name: str, text: str) -> None:
        """Appends a text to the media of the run, such as a sample of a model.

        Args:
            step: Number of the step, from 0 on.
            name: Name of the series.
            text: The text.

        Raises:
            TypeError: It is no text.
            RuntimeError: The launch has ended.
        """
        self._write_medium(step, name, lambda _: media.text_line(text))

    def write_histogram(self, step: int, name: str, values: Any, *, bins: int = media.BINS) -> None:
        """Appends the histogram of an array to the media of the run.

        Args:
            step: Number of the step, from 0 on.
            name: Name of the series.
            values: Numbers of any shape. Those that are not finite are counted apart.
            bins: Number of bins of equal width.

        Raises:
            ValueError: No value is finite.
            RuntimeError: The launch has ended.
        """
        self._write_medium(step, name, lambda _: media.histogram_line(values, bins))

    def write_image(self, step: int, name: str, pixels: Any) -> None:
        """Appends an image to the media of the run. Needs the extra `images`.

        Args:
            step: Number of the step, from 0 on.
            name: Name of the series.
            pixels: u8[h, w], or u8[h, w, c] with 1, 3 or 4 channels; or floats in [0, 1].

        Raises:
            ValueError: The shape or the values do not fit.
            ImportError: Pillow is missing.
            RuntimeError: The launch has ended.
        """
        self._write_medium(step, name, lambda run: media.image_line(pixels, run))

    def _write_medium(
        self, step: int, name: str, line: Callable[[Path], Mapping[str, Any]]
    ) -> None:
        if self._under_way() and self._metrics is not None:
            run = self._metrics.parent
            self._media = self._media or Writer(run / media.FILE)
            self._media.append(checked_step(step), {"name": name, **line(run)})

    def _under_way(self) -> bool:
        if self._ended:
            raise RuntimeError(
                "a launch must be under way, got a write after its end: launch the run again"
            )
        return True

    def close(self) -> None:
        """Closes the files of metrics and media. A later write opens them again."""
        for writer in (self._writer, self._media):
            if writer is not None:
                writer.close()


def beginning(
    *,
    command: Sequence[str] | None,
    devices: Mapping[str, Any] | None,
    seeds: Mapping[str, int],
    code: Path | None,
) -> dict[str, Any]:
    """Returns the start of a launch.

    Args:
        command: Its words. Default: those of this process.
        devices: Platform, kind and count.
        seeds: Random seeds by name.
        code: A file of the program. Default: that of `__main__`.
    """
    try:
        json.dumps(devices)
    except TypeError as error:
        raise TypeError(
            f"devices must be numbers and strings by name, got devices={devices!r:.100} ({error}): "
            "pass devices_of(jax.devices())"
        ) from None
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    file = code or (Path(main) if main else None)
    return {
        "event": "start",
        "time": now(),
        "command": shlex.join(sys.orig_argv if command is None else command),
        "host": machine.host(),
        "cores": os.cpu_count(),
        "devices": None if devices is None else dict(devices),
        "seeds": dict(seeds),
        "versions": machine.versions(),
        "git": {
            "directory": machine.commit_of(Path.cwd()),
            "code": None if file is None else machine.commit_of_file(file.resolve()),
        },
    }


def ending(outcome: str) -> dict[str, Any]:
    """Returns the end of a launch. ValueError for an unknown outcome."""
    if outcome not in OUTCOMES:
        raise ValueError(
            f"an outcome must be one of {', '.join(OUTCOMES)}, got outcome={outcome!r}: set "
            "launch.outcome to 'interrupted' for a run that will go on"
        )
    return {"event": "end", "time": now(), "outcome": outcome}


def failure(error: BaseException, outcome: str) -> dict[str, Any]:
    """Returns the end of a launch whose block raised. An interruption is no failure.

    Args:
        error: What was raised.
        outcome: The outcome if it is an exit of the program without an error.
    """
    if isinstance(error, KeyboardInterrupt):
        return ending("interrupted")
    if isinstance(error, SystemExit) and error.code in (None, 0) and outcome in OUTCOMES:
        return ending(outcome)
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return {**ending("failed"), "error": reason}

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The stack frames of a program: from an instruction to its lines of Python.

Source: `StackFrameIndexProto` in xla/service/hlo.proto of the OpenXLA repository.
"""

import dataclasses
import functools

from dovetail_profile.wire import Message


@dataclasses.dataclass(frozen=True)
class Frame:
    """A line of source.

    Attributes:
        file: The path in Python at the time of tracing.
        function: Python's qualified name. May be empty.
        line: Counted from 1.
    """

    file: str
    function: str
    line: int

    def __str__(self) -> str:
        """The last two parts of the path, and the line: `mlp/router.py:41`."""
        return f"{'/'.join(self.file.replace(chr(92), '/').split('/')[-2:])}:{self.line}"


class Frames:
    """The frames of one module. Numbers count from 1; 0 is no frame."""

    def __init__(self, index: Message) -> None:
        self._index = index

    @functools.cached_property
    def _frames(self) -> list[tuple[Frame, int]]:
        index = self._index
        files, functions = ("", *index.texts(1)), ("", *index.texts(2))
        places = [
            Frame(files[m.integer(1)], functions[m.integer(2)], m.integer(3))
            for m in index.messages(3)
        ]
        return [(places[m.integer(1) - 1], m.integer(2)) for m in index.messages(4)]

    def get(self, number: int) -> Frame | None:
        """Returns a frame, or None for 0."""
        return self._frames[number - 1][0] if 0 < number <= len(self._frames) else None

    def stack(self, number: int) -> tuple[Frame, ...]:
        """Returns a frame and its callers, the innermost first."""
        frames, seen = [], set()
        while 0 < number <= len(self._frames) and number not in seen:
            seen.add(number)  # the outermost frame may be its own parent
            frame, number = self._frames[number - 1]
            frames.append(frame)
        return tuple(frames)

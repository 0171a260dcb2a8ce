# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Progress bars of the commands. Each is a context manager, which closes its bars."""

import contextlib
import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm  # a widget in a notebook

if TYPE_CHECKING:
    from dovetail_data import Progress


# Scalars in a bar: the loss, and measures of pairs where there are any.
_SHOWN = {"loss": "loss", "margin": "loss/margin", "accuracy": "loss/accuracy"}
_WINDOW = 50  # steps of the median rate in a bar
_BYTES: dict[str, Any] = {"unit": "B", "unit_scale": True}


class _Bars(contextlib.AbstractContextManager):
    """Bars by title."""

    def __init__(self) -> None:
        self._bars: dict[str, tqdm] = {}

    def __exit__(self, *_: object) -> None:
        for bar in self._bars.values():
            bar.close()

    def _bar(self, title: str, **options: Any) -> tqdm:
        """Returns the bar of this title, which begins with these options of tqdm."""
        if title not in self._bars:
            self._bars[title] = tqdm(desc=title, **options)
        return self._bars[title]


class _Steps:
    """The text of a step: its loss, and the median rate of the last 50 steps."""

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=_WINDOW)

    def __call__(self, scalars: Mapping[str, float]) -> str:
        if "tokens_per_s" in scalars:
            self._rates.append(scalars["tokens_per_s"])
        shown = [f"{name} {scalars[key]:.3f}" for name, key in _SHOWN.items() if key in scalars]
        if self._rates:
            shown.append(f"median {statistics.median(self._rates):,.0f} tokens/s")
        return ", ".join(shown)


class Bar(_Bars):
    """A metric sink that shows steps, the loss of a step and the median rate of the last 50 steps.

    The margin and the accuracy of pairs are shown beside the loss.
    """

    def __init__(self, *, steps: int):
        super().__init__()
        self._steps, self._text = steps, _Steps()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Moves the bar past `step`. In a resumed run the bar starts at the first step."""
        if "loss" not in scalars:
            return
        bar = self._bar("train", total=self._steps, initial=step, unit="step")
        bar.set_postfix_str(self._text(scalars), refresh=False)
        bar.update(step + 1 - bar.n)


class Lines:
    """A metric sink that prints a step now and then: for files, and for other hosts' output.

    It has the scalars of `Bar`.

    Args:
        steps: Steps of the run.
        every_s: Least seconds between two lines.
    """

    def __init__(self, *, steps: int, every_s: float = 5.0) -> None:
        self._steps, self._every_s, self._text = steps, every_s, _Steps()
        self._printed_s = -every_s

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Prints the step if it is time for a line, or if it is the last one."""
        if "loss" not in scalars:
            return
        now_s, shown = time.monotonic(), self._text(scalars)
        if now_s - self._printed_s >= self._every_s or step + 1 == self._steps:
            self._printed_s = now_s
            print(f"step {step + 1}/{self._steps}: {shown}", file=sys.stderr, flush=True)


class Writing(_Bars):
    """Shows the progress of writing corpora, a bar for each."""

    def __call__(self, corpus: str, progress: "Progress") -> None:
        bar = self._bar(f"tokenize {corpus}", total=progress.total_bytes, **_BYTES)
        bar.update(progress.bytes - bar.n)


class Bytes(_Bars):
    """Shows the bytes of a long read or write."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self._title = title

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        bar = self._bar(self._title, total=total_bytes, **_BYTES)
        bar.update(done_bytes - bar.n)

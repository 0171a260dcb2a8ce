# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Progress bars of the commands."""

import statistics
import sys
import time
from collections import deque
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from tqdm.auto import tqdm  # a widget in a notebook

if TYPE_CHECKING:
    from dovetail_data import Progress


# Scalars in a bar: the loss, and measures of pairs where there are any.
_SHOWN = {"loss": "loss", "margin": "loss/margin", "accuracy": "loss/accuracy"}
_WINDOW = 50  # steps of the median rate in a bar


class Bar:
    """A metric sink that shows steps, the loss of a step and the median rate of the last 50 steps.

    The margin and the accuracy of pairs are shown beside the loss.

    Use it as a context manager.
    """

    def __init__(self, *, steps: int):
        self._steps = steps
        self._rates: deque[float] = deque(maxlen=_WINDOW)
        self._bar: tqdm | None = None

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Moves the bar past `step`. In a resumed run the bar starts at the first step."""
        if "loss" not in scalars:
            return
        if self._bar is None:
            self._bar = tqdm(total=self._steps, initial=step, unit="step", desc="train")
        if "tokens_per_s" in scalars:
            self._rates.append(scalars["tokens_per_s"])
        self._bar.set_postfix_str(_state(scalars, self._rates), refresh=False)
        self._bar.update(step + 1 - self._bar.n)


class Lines:
    """A metric sink that prints a step now and then: for files, and for other hosts' output.

    It has the scalars of `Bar`.

    Args:
        steps: Steps of the run.
        every_s: Least seconds between two lines.
    """

    def __init__(self, *, steps: int, every_s: float = 5.0) -> None:
        self._steps, self._every_s = steps, every_s
        self._rates: deque[float] = deque(maxlen=_WINDOW)
        self._printed_s = -every_s

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Prints the step if it is time for a line, or if it is the last one."""
        if "loss" not in scalars:
            return
        if "tokens_per_s" in scalars:
            self._rates.append(scalars["tokens_per_s"])
        now_s = time.monotonic()
        if now_s - self._printed_s >= self._every_s or step + 1 == self._steps:
            self._printed_s = now_s
            shown = _state(scalars, self._rates)
            print(f"step {step + 1}/{self._steps}: {shown}", file=sys.stderr, flush=True)


class Writing:
    """Shows the progress of writing corpora, a bar for each. Use it as a context manager."""

    def __init__(self) -> None:
        self._bars: dict[str, tqdm] = {}

    def __enter__(self) -> "Writing":
        return self

    def __exit__(self, *_: object) -> None:
        for bar in self._bars.values():
            bar.close()

    def __call__(self, corpus: str, progress: "Progress") -> None:
        bar = self._bars.get(corpus)
        if bar is None:
            bar = self._bars[corpus] = tqdm(
                total=progress.total_bytes, unit="B", unit_scale=True, desc=f"tokenize {corpus}"
            )
        bar.update(progress.bytes - bar.n)


class Bytes:
    """Shows the bytes of a long read or write. Use it as a context manager."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._bar: tqdm | None = None

    def __enter__(self) -> "Bytes":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, done_bytes: int, total_bytes: int) -> None:
        if self._bar is None:
            self._bar = tqdm(total=total_bytes, unit="B", unit_scale=True, desc=self._title)
        self._bar.update(done_bytes - self._bar.n)


class Scoring:
    """Shows rows that are computed. Use it as a context manager.

    Args:
        total: Number of rows. None: not known.
        title: Their use.
    """

    def __init__(self, total: int | None, *, title: str = "reference") -> None:
        self._bar = tqdm(total=total, unit="row", desc=title)

    def __enter__(self) -> "Scoring":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def __call__(self, rows: int) -> None:
        """Adds rows."""
        self._bar.update(rows)


class Prompts:
    """Shows prompts that are done and the rate of new tokens. Use it as a context manager.

    Args:
        total: Number of prompts.
        done: Number of them that were done before.
    """

    def __init__(self, total: int, *, done: int) -> None:
        self._tokens, self._start_s = 0, time.monotonic()
        self._bar = tqdm(total=total, initial=done, unit="prompt", desc="generate")

    def __enter__(self) -> "Prompts":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def __call__(self, prompts: int, tokens: int) -> None:
        """Adds prompts and their new tokens."""
        self._tokens += tokens
        rate = self._tokens / max(time.monotonic() - self._start_s, 1e-9)
        self._bar.set_postfix_str(f"{rate:,.0f} tokens/s", refresh=False)
        self._bar.update(prompts)


def _state(scalars: Mapping[str, float], rates: Collection[float]) -> str:
    shown = [f"{name} {scalars[key]:.3f}" for name, key in _SHOWN.items() if key in scalars]
    if rates:
        shown.append(f"median {statistics.median(rates):,.0f} tokens/s")
    return ", ".join(shown)

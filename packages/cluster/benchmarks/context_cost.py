# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Cost per step of `Context.stop` with `progress.write`, while the thread that sends runs.

The peer is the same loop around an empty function. The bare loop of the package's bar takes 10 ms
per step: `share` is our part of it.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from dovetail_cluster.context import Context, pump
from measure import report, rounds

CALLS = 100_000
STEP_US = 10_000.0


def per_call_us(call: Callable[[int], Any]) -> float:
    """Microseconds per call, over many."""
    begin = time.perf_counter()
    for step in range(CALLS):
        call(step)
    return (time.perf_counter() - begin) / CALLS * 1e6


def main() -> None:
    """Prints one line."""
    context, ended, sent = Context(0, 1, 0), threading.Event(), []
    thread = threading.Thread(target=pump, args=(context, sent.append, ended))
    thread.start()
    scalars = {"loss": 0.0}

    def both(step: int) -> None:
        context.stop(step)
        context.progress.write(step, scalars)

    def nothing(step: int) -> None:
        pass

    results = rounds(
        {
            "ours": lambda: per_call_us(both),
            "nothing": lambda: per_call_us(nothing),
            "nothing again": lambda: per_call_us(nothing),
        },
        repeats=7,
    )
    ended.set()
    thread.join()
    report(
        "stop and progress.write",
        metric="per_step",
        unit="us",
        values=results["ours"],
        peer="an empty function",
        peer_values=results["nothing"],
        peer_again=results["nothing again"],
        share=max(results["ours"]) / STEP_US,
        messages=len(sent),
    )


if __name__ == "__main__":
    main()

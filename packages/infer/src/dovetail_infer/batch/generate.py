# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Generates missing results, window by window.

Several windows are at work at once, so a new one fills the places that an old one leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from dovetail_infer.batch.requests import PROMPT, RefusedError, Request
from dovetail_infer.batch.results import Results
from dovetail_infer.completion import Completion
from dovetail_infer.engine import Engine
from dovetail_infer.run.prompts import Prompt
from dovetail_infer.sampling import Sampling

WINDOW = 16  # requests that are generated, written and synced together
# Windows at work, and windows begun before the oldest must be written. A long request holds up
# those behind it; meanwhile their results wait in memory, and would be lost with the process.
WORKERS, AHEAD = 8, 64
Pairs = list[tuple[Request, Completion]]


def generate(
    engine: Engine, results: Results, *, prompts: Sequence[Prompt] | None = None
) -> Iterator[Pairs]:
    """Generates the missing results, writes them, and yields them.

    A line of the file has the request's index, its source, `Completion.to_json` and its digest.
    Lines come in the order of the requests. An error of a request is such a result too: delete its
    line to try it again.

    Args:
        engine: The engine.
        results: The opened file.
        prompts: Text or ids of each of `results.missing`, as for `Engine.generate`. Ids of messages
            come from a chat template, such as that of `dovetail_data.Prompt`. None: "prompt" of
            each request.

    Yields:
        Requests with their completions, when they are on the disk: up to 16 at a time.

    Raises:
        RefusedError: A request has messages, and `prompts` is None.
        ValueError: A prompt or an option is not possible; nothing has been computed then.
    """
    requests = results.missing
    if prompts is None:
        for request in requests:
            if PROMPT not in request.source:
                raise RefusedError(
                    f'line {request.index + 1} must have a "{PROMPT}" for an engine, which has no '
                    "chat template, got messages: pass prompts= with the ids of each request"
                )
        prompts = [request.source[PROMPT] for request in requests]
    submission = engine._submission  # checks all of them before the first is computed
    ids = submission.prompts(prompts)
    submission.options([request.sampling for request in requests], len(ids))
    for pairs in in_windows(engine.generate, requests, ids):
        results.write({r.index: {**r.source, **c.to_json()} for r, c in pairs})
        yield pairs


def in_windows(
    generate: Callable[[Sequence[Any], Sequence[Sampling]], Sequence[Completion]],
    requests: Sequence[Request],
    prompts: Sequence[Any],
) -> Iterator[Pairs]:
    """Yields windows of requests with their completions, in the order of the requests.

    Args:
        generate: `Engine.generate`, which threads may call at the same time.
        requests: The requests.
        prompts: The ids of each.
    """
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="dovetail-batch")
    begun: deque[tuple[Sequence[Request], Future[Sequence[Completion]]]] = deque()

    def oldest() -> Pairs:
        window, completions = begun.popleft()
        return list(zip(window, completions.result(), strict=True))

    try:
        for start in range(0, len(requests), WINDOW):
            if len(begun) == AHEAD:
                yield oldest()
            window, ids = requests[start : start + WINDOW], prompts[start : start + WINDOW]
            begun.append((window, pool.submit(generate, ids, [r.sampling for r in window])))
        while begun:
            yield oldest()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)

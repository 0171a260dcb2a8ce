# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The event log of a scheduler.

A log has one JSON object a line. The first is `limits`, with the fields of `Limits`. Then follow
the calls that the scheduler got and the plans that it made:

    {"event": "add", "request_id": 7, "ids": [..], "prompt_length": 5, "max_total": 9,
     "namespace": "00ff", "read_prefix": true, "priority": 0}
    {"event": "step", "rows": [[request_id, slot, start, count, samples, admitted], ..],
     "preempted": [..]}                       a plan; without rows if there was nothing to do
    {"event": "sampled", "request_id": 7, "token": 3}
    {"event": "finish", "request_id": 7}
    {"event": "reset", "request_ids": [..]}   null for all requests
    {"event": "rename", "request_id": 7, "namespace": "00ff"}
    {"event": "drop_cache"}

`dovetail_infer.schedule.replay` makes the same plans again. The ids of prompts
and outputs are in the log: keep it as secret as those.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

from dovetail_infer.schedule.plan import Limits, Plan
from dovetail_infer.schedule.sequence import Sequence

_log = logging.getLogger(__name__)
Event = dict[str, Any]


class Recorder:
    """Hands events to a function of the user until it fails.

    The scheduler calls it in the midst of its changes, which an exception would leave half done.

    Args:
        events: The function.
    """

    def __init__(self, events: Callable[[Event], None]):
        self._events: Callable[[Event], None] | None = events

    def __call__(self, event: Event) -> None:
        if self._events is not None:
            try:
                self._events(event)
            except Exception:
                self._events = None
                _log.exception("events failed at %r: no more come", event["event"])


def limits(limits: Limits) -> dict[str, Any]:
    """Returns the first event of a log."""
    return {"event": "limits", **dataclasses.asdict(limits)}


def add(sequence: Sequence) -> dict[str, Any]:
    """Returns the event of a new request."""
    return {
        "event": "add",
        "request_id": sequence.request_id,
        "ids": list(map(int, sequence.ids)),
        "prompt_length": sequence.prompt_length,
        "max_total": sequence.max_total,
        "namespace": sequence.namespace.hex(),
        "read_prefix": sequence.read_prefix,
        "priority": sequence.priority,
    }


def step(plan: Plan) -> dict[str, Any]:
    """Returns the event of a plan."""
    rows = [list(dataclasses.astuple(row)) for row in plan.rows]
    return {"event": "step", "rows": rows, "preempted": list(plan.preempted)}


def sampled(request_id: int, token: int) -> dict[str, Any]:
    """Returns the event of a drawn token."""
    return {"event": "sampled", "request_id": request_id, "token": int(token)}


def finish(request_id: int) -> dict[str, Any]:
    """Returns the event of a request that is done or aborted."""
    return {"event": "finish", "request_id": request_id}


def reset(request_ids: list[int] | None) -> dict[str, Any]:
    """Returns the event of requests that begin anew."""
    return {"event": "reset", "request_ids": request_ids}


def rename(request_id: int, namespace: bytes) -> dict[str, Any]:
    """Returns the event of a new namespace."""
    return {"event": "rename", "request_id": request_id, "namespace": namespace.hex()}


def drop_cache() -> dict[str, Any]:
    """Returns the event of a dropped prefix cache."""
    return {"event": "drop_cache"}

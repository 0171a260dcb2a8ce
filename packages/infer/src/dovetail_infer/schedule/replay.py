# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Replay of an event log: the same calls, and a comparison of the plans."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from dovetail_infer.schedule.plan import Group, Limits
from dovetail_infer.schedule.scheduler import Scheduler
from dovetail_infer.schedule.sequence import Sequence


class LogError(ValueError):
    """An event log that is damaged, or made by another scheduler."""

    exit_code = 3


def replay(lines: Iterable[str]) -> Scheduler:
    """Makes the calls of an event log to a fresh scheduler.

    Args:
        lines: JSON lines, as in `dovetail_infer.schedule.events`.

    Returns:
        The scheduler after the last line.

    Raises:
        LogError: If a line is no event, or if a plan differs from that of the log. It names the
            first such line.
    """
    scheduler: Scheduler | None = None
    made: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
            if not isinstance(event, dict):
                raise TypeError("no object")
            if scheduler is None:
                scheduler = Scheduler(_limits(event), record=made.append)
            else:
                _CALLS[event["event"]](scheduler, event)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LogError(
                "each line of a log must be an event, the first of them limits, got "
                f"line {number}: {line.strip()[:200]} ({type(error).__name__}: {error}); pass the "
                "log that Scheduler(record=) wrote, from its beginning"
            ) from error
        # Through JSON, for tuples are lists there.
        again = json.loads(json.dumps(made.pop()))
        if again != event:
            raise LogError(
                f"a replay must make the events of the log, got line {number}: "
                f"{line.strip()[:200]}, but {json.dumps(again)[:200]} again; replay a log with the "
                "version that wrote it"
            )
    if scheduler is None:
        raise LogError("a log must begin with limits, got no line; pass a log with events")
    return scheduler


def _limits(event: dict[str, Any]) -> Limits:
    fields = {name: value for name, value in event.items() if name not in ("event", "groups")}
    return Limits(groups=tuple(Group(**group) for group in event["groups"]), **fields)


def _add(scheduler: Scheduler, event: dict[str, Any]) -> None:
    scheduler.add(
        Sequence(
            request_id=event["request_id"],
            ids=list(event["ids"]),
            prompt_length=event["prompt_length"],
            max_total=event["max_total"],
            namespace=bytes.fromhex(event["namespace"]),
            read_prefix=event["read_prefix"],
            priority=event["priority"],
        )
    )


_CALLS: dict[str, Callable[[Scheduler, dict[str, Any]], object]] = {
    "add": _add,
    "step": lambda scheduler, _: scheduler.plan(),
    "sampled": lambda scheduler, event: scheduler.sampled(event["request_id"], event["token"]),
    "finish": lambda scheduler, event: scheduler.finish(event["request_id"]),
    "reset": lambda scheduler, event: scheduler.reset(event["request_ids"]),
    "rename": lambda scheduler, event: scheduler.rename(
        event["request_id"], bytes.fromhex(event["namespace"])
    ),
    "drop_cache": lambda scheduler, _: scheduler.drop_cache(),
}

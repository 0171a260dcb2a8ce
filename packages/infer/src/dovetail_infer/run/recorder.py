# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Events of the scheduler for a function of the user."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

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

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Turn`: one answer as OpenAI's API has it, whole or in pieces."""

from __future__ import annotations

import secrets
from typing import Any

from dovetail_infer.server.formats.source import Event, Source, Steps

_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


class Turn:
    """Reads the text of one answer.

    Args:
        source: The text of the answer.
        steps: The grammar over it.
        short_ids: Ids of calls have nine letters and digits, as Mistral's templates demand.

    Attributes:
        calls: Number of the calls so far.
    """

    def __init__(self, source: Source, steps: Steps[None], *, short_ids: bool = False) -> None:
        self.calls = 0
        self._source, self._steps, self._short_ids = source, steps, short_ids

    def read(self, text: str, *, last: bool = False) -> dict[str, Any]:
        """Returns the fields of a delta for the next piece of the text.

        Args:
            text: The piece.
            last: It is the last one. A whole answer is one last piece.

        Returns:
            "content", "reasoning_content" and, the same under the name of newer clients,
            "reasoning"; "tool_calls", of which one that begins has an id and a name. Those without
            text are absent.
        """
        self._source.feed(text, closed=last)
        texts: dict[str, str] = {}
        calls: dict[int, dict[str, Any]] = {}
        for event in self._events():
            if event.kind == "name":
                calls[self.calls] = self._call(event.text)
                self.calls += 1
            elif event.kind == "arguments":
                i = self.calls - 1
                call = calls.setdefault(i, {"index": i, "function": {"arguments": ""}})
                call["function"]["arguments"] += event.text
            elif event.kind == "reasoning":
                for name in ("reasoning_content", "reasoning"):
                    texts[name] = texts.get(name, "") + event.text
            else:
                texts["content"] = texts.get("content", "") + event.text
        return {**texts, **({"tool_calls": list(calls.values())} if calls else {})}

    def _events(self) -> list[Event]:
        """Returns the events of the grammar until it waits for more text."""
        events = []
        for event in self._steps:
            if event is None:
                break
            events.append(event)
        return events

    def _call(self, name: str) -> dict[str, Any]:
        size = 9 if self._short_ids else 24
        letters = "".join(secrets.choice(_ALPHABET) for _ in range(size))
        return {
            "index": self.calls,
            "id": letters if self._short_ids else f"call_{letters}",
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }

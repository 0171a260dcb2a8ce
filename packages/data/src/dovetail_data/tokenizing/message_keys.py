# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The keys of a message: those that say nothing, and those that nobody would read.

Arrow gives each dictionary of a column the keys of all, with null for those that it lacks. Such a
null cannot be told from one that was written, and a template prints both. So null counts as absent,
in every format of records: equal rows then have equal tokens. TRL has the same rule.
"""

from collections.abc import Callable, Mapping
from typing import Any

# Data sets use one of these names for the reasoning of a message; templates read the first two.
REASONING = ("reasoning_content", "thinking", "reasoning")
# Keys of messages that change neither their text nor their training.
_HARMLESS = {
    "role": "read here",
    "content": "read here",
    "type": "read here, of a part of a content",
    "text": "read here, of a part of a content",
    "name": "the speaker, whom most templates leave out",
    "tool_call_id": "the call that is answered, which most templates know by its place",
    "id": "bookkeeping",
    "timestamp": "bookkeeping",
    "created_at": "bookkeeping",
}
_EMPTY: tuple[Any, ...] = (None, "", [], {}, ())


def without_nulls(value: Any) -> Any:
    """Returns a JSON value whose dictionaries, at any depth, have no key with None."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(item) for item in value]
    return value


def plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the message without nulls, its reasoning under each usual name."""
    present = without_nulls(message)
    reasoning = next((present[name] for name in REASONING if name in present), None)
    if reasoning is None:
        return present
    return {"thinking": reasoning, **present, "reasoning_content": reasoning}


def unread(fields: Mapping[str, Any], reads: Callable[[str], bool]) -> str | None:
    """Returns the first key of a message that has a value and no reader, or None.

    Args:
        fields: The message, or a part of its content, without the keys that its encoder reads.
        reads: Whether the template reads a key.
    """
    for key, value in fields.items():
        names = REASONING if key in REASONING else (key,)
        if key not in _HARMLESS and value not in _EMPTY and not any(map(reads, names)):
            return key
    return None

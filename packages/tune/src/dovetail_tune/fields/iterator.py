# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""An iterator of the batches of another, with more fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from dovetail_tune.types import Batch


@runtime_checkable
class Fields(Protocol):
    """Makes the fields to add to a batch."""

    #: Counts since the start, by name.
    counts: dict[str, int]

    def __call__(self, batch: Batch) -> Mapping[str, Any]:
        """Returns the fields to add, arrays [B, ...]."""
        ...

    def close(self) -> None:
        """Frees files."""
        ...


@runtime_checkable
class _Stateful(Protocol):
    def get_state(self) -> Any: ...
    def set_state(self, state: Any) -> None: ...


@runtime_checkable
class _Closable(Protocol):
    def close(self) -> None: ...


class FieldIterator:
    """Batches with added fields, in the order of the batches given.

    Returned by `with_reference`, `with_teacher` and `with_mismatched`. It reads no batch ahead. If
    the batches have `get_state` and `set_state`, so has this iterator, with their states; a list
    has the number of batches delivered. Leaving a `with` block calls `close`.

    Args:
        batches: Batches to add to.
        fields: Makes the fields.
    """

    def __init__(self, batches: Iterator[Batch], fields: Fields) -> None:
        self._batches, self._fields = batches, fields

    def __iter__(self) -> FieldIterator:
        return self

    def __next__(self) -> dict[str, Any]:
        batch = next(self._batches)
        return {**batch, **self._fields(batch)}

    def __enter__(self) -> FieldIterator:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def counts(self) -> dict[str, int]:
        """Returns counts since the start, by name. Each function of this package lists its own."""
        return dict(self._fields.counts)

    def close(self) -> None:
        """Closes the files of the fields, and the batches if they can be closed."""
        self._fields.close()
        if isinstance(self._batches, _Closable):
            self._batches.close()


class _StatefulFieldIterator(FieldIterator):
    _batches: Any

    def get_state(self) -> Any:
        """Returns the state of the batches after the batch delivered last."""
        return self._batches.get_state()

    def set_state(self, state: Any) -> None:
        """Continues from a state of `get_state`."""
        self._batches.set_state(state)


def add_fields(batches: Iterable[Batch], fields: Fields) -> FieldIterator:
    """Returns the batches with the fields added.

    Raises:
        TypeError: `batches` is one batch, or no iterable.
    """
    if isinstance(batches, Mapping) or not isinstance(batches, Iterable):
        raise TypeError(
            f"batches must be an iterable of batches, got {type(batches).__name__}; pass a list "
            "such as [batch], or an iterator of dovetail_data"
        )
    iterator = _Listed(batches) if isinstance(batches, Sequence) else iter(batches)
    kind = _StatefulFieldIterator if isinstance(iterator, _Stateful) else FieldIterator
    return kind(iterator, fields)


class _Listed:
    """An iterator over a list of batches, with a state."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches, self._delivered = batches, 0

    def __iter__(self) -> _Listed:
        return self

    def __next__(self) -> Batch:
        if self._delivered >= len(self._batches):
            raise StopIteration
        self._delivered += 1
        return self._batches[self._delivered - 1]

    def get_state(self) -> dict[str, int]:
        return {"batches": self._delivered}

    def set_state(self, state: Mapping[str, Any]) -> None:
        delivered = state.get("batches") if set(state) == {"batches"} else None
        if not isinstance(delivered, int) or not 0 <= delivered <= len(self._batches):
            raise ValueError(
                f'a state must be {{"batches": n}} with n from 0 to {len(self._batches)}, got '
                f"state={state!r}; pass a result of get_state for this list"
            )
        self._delivered = delivered

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Keys and tensors that the user vouches for, in every directory that a block of code opens."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Accepted:
    """Keys and tensors that are accepted beside the arguments of a call.

    Attributes:
        allow: config.json keys.
        ignore: Patterns of tensors.
    """

    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


_CURRENT: ContextVar[Accepted] = ContextVar("accepted", default=Accepted())  # noqa: B039


def accepted() -> Accepted:
    """Returns the keys and tensors that the blocks around this call accept."""
    return _CURRENT.get()


@contextlib.contextmanager
def accepting(*, allow: tuple[str, ...] = (), ignore: tuple[str, ...] = ()) -> Iterator[None]:
    """Accepts these keys and tensors in every directory that is opened in the block.

    For programs that open directories in several places; `load(path, allow=..., ignore=...)` does
    it for one. A pattern may match nothing in some of the directories.

    Args:
        allow: Unknown config.json keys. Only pass keys without effect on the model.
        ignore: Patterns of extra tensors, which are left out with a warning.

    Example:

        >>> from dovetail_models import accepting
        >>> with accepting(allow=("my_note",)):
        ...     pass  # load, abstract, explain and diff accept the key here
    """
    outer = _CURRENT.get()
    token = _CURRENT.set(Accepted((*outer.allow, *allow), (*outer.ignore, *ignore)))
    try:
        yield
    finally:
        _CURRENT.reset(token)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""When a server's garbage is collected.

- The lists of a JSON image are 50,000 objects for the collector. It walks through all of them again
  and again, and finds nothing, since a document has no cycles. So it is off while one is parsed.
- Programs and modules stay, and a full collection walks through hundreds of thousands of objects.
  So all that is there after a load is left out of later collections.
"""

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

_lock = threading.Lock()
_parses = 0
_was_on = False


@contextlib.contextmanager
def collection_off() -> Iterator[None]:
    """Turns the collection off inside of the block, on all threads, unless it is off already.

    Blocks of several threads may overlap. The last one turns it on again.
    """
    global _parses, _was_on
    with _lock:
        if not _parses:
            _was_on = gc.isenabled()
            gc.disable()
        _parses += 1
    try:
        yield
    finally:
        with _lock:
            _parses -= 1
            if not _parses and _was_on:
                gc.enable()


def freeze() -> None:
    """Leaves all objects that exist now out of later collections."""
    gc.collect(1)  # young garbage, in a few milliseconds: frozen, it would stay
    gc.freeze()


def collect_unless_gone(model: "weakref.ref[Any]") -> None:
    """Collects everything if a released model is still there.

    It ends without the collector unless an object of a cycle refers to it. If that was frozen, no
    later collection would find it, and its weights would stay.
    """
    if model() is not None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()

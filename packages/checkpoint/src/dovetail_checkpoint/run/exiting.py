# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Work at the end of a script, while threads can still be used.

At its end the interpreter first forbids new work in thread pools, and Orbax writes in such pools: a
save that still runs then never ends. `atexit` comes after that. `threading` has a hook before it,
made for `concurrent.futures` and private; tried on Python 3.11 and 3.12. Without it the work runs
in `atexit`. Since Python 3.12 no thread starts even in the hook
(`_compat.finish_without_new_threads`).
"""

import atexit
import threading
from collections.abc import Callable


def before_exit(work: Callable[[], None]) -> None:
    """Registers `work` to run once, before the interpreter ends, also after an exception."""
    register = getattr(threading, "_register_atexit", atexit.register)
    register(work)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Compilations while they happen: stages from `jax.monitoring`, reasons from JAX's log.

Listeners are called in the compiling thread. With `jax_explain_cache_misses` JAX logs a warning
before it traces; a filter on its loggers hides it from users who did not set the option.
"""

import contextlib
import logging
import re
import threading
from collections.abc import Iterator
from typing import Any

from dovetail_profile._compat import EXPLANATIONS, changed_static_arguments
from dovetail_profile.trace.compilations import Compilation

_STAGE = "/jax/core/compile/"
_STAGES = {  # in order, with the field of each
    f"{_STAGE}jaxpr_trace_duration": "trace_s",
    f"{_STAGE}jaxpr_to_mlir_module_duration": "lower_s",
    f"{_STAGE}backend_compile_duration": "compile_s",
}
_RETRIEVAL = "/jax/compilation_cache/cache_retrieval_time_sec"
_OPTION = "jax_explain_cache_misses"
_CALL = re.compile(r"\w+\((.*)\)")  # "jit(f)", as later stages name "f"
_HEAD = re.compile(r"TRACING CACHE MISS at (?P<caller>.*?:\d+):\d+ (?P<where>\(.*\)):\n")
_NEW = re.compile(r"\s*never seen function:\n\s*(?P<name>\S.*?) id=\d+.*\n?")
_KNOWN = re.compile(r"\s*for (?P<name>\S+).*\n(\s*all previously seen cache keys differ.*\n)?")
_STATIC = "pytree metadata Static("  # JAX 0.10.2 gives the place of a static argument
_UNKNOWN = "cache miss explanation unavailable"


class CompileLog(logging.Filter):
    """The compilations of all threads while it is open.

    Attributes:
        compilations: One for each traced, lowered or compiled function, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.compilations: list[Compilation] = []
        self._pending: dict[int, list[Compilation]] = {}  # by thread, newest last
        self._retrieval_s: dict[int, float] = {}  # by thread
        self._explanations: dict[int, list[Compilation]] = {}  # by thread
        self._is_asked_for = False

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Listens until the block ends."""
        import jax
        from jax import monitoring

        monitoring.register_event_time_span_listener(self._stage)
        monitoring.register_event_duration_secs_listener(self._duration)
        # A filter on a parent sees nothing of its children, and handlers may be a program's own.
        names = [n for n in logging.root.manager.loggerDict if n.partition(".")[0] == "jax"]
        loggers = [logging.getLogger(name) for name in names]
        for logger in loggers:
            logger.addFilter(self)
        self._is_asked_for = getattr(jax.config, _OPTION)
        jax.config.update(_OPTION, True)
        try:
            yield
        finally:
            jax.config.update(_OPTION, self._is_asked_for)
            for logger in loggers:
                logger.removeFilter(self)
            # Each asserts that the listener is still there, and a program may have cleared all.
            with contextlib.suppress(AssertionError):
                monitoring.unregister_event_time_span_listener(self._stage)
            with contextlib.suppress(AssertionError):
                monitoring.unregister_event_duration_listener(self._duration)

    def _stage(self, event: str, start_time: float, end_time: float, **about: Any) -> None:
        field = _STAGES.get(event)
        if field is None:
            return
        name = str(about.get("fun_name", ""))
        call = _CALL.fullmatch(name)
        thread, function = threading.get_ident(), call[1] if call else name
        pending = self._pending.setdefault(thread, [])
        begun = [c for c in pending if c.function == function and getattr(c, field) is None]
        if begun and field != "trace_s":
            row = begun[-1]
        else:
            row = Compilation(function, start_time)
            pending.append(row)
            self.compilations.append(row)
        setattr(row, field, end_time - start_time)
        if field == "trace_s":
            # Those of functions that it calls come later.
            for each in reversed(self._explanations.pop(thread, [])):
                if each.function == function:
                    row.reason, row.caller = each.reason, each.caller
        if field == "compile_s":
            row.retrieval_s = self._retrieval_s.pop(thread, None)
            pending.remove(row)

    def _duration(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == _RETRIEVAL:
            self._retrieval_s[threading.get_ident()] = duration_secs

    def filter(self, record: logging.LogRecord) -> bool:
        """Keeps an explanation. Returns whether a reader would see it without this log."""
        if not str(record.msg).startswith(EXPLANATIONS):
            return True
        if explanation := _explanation(record.getMessage()):
            self._explanations.setdefault(threading.get_ident(), []).append(explanation)
        if self._is_asked_for:
            return True
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logging.getLogger(record.name).isEnabledFor(logging.DEBUG)


def _explanation(message: str) -> Compilation | None:
    """Returns function, caller and reason in the text of a warning; None for another text."""
    head = _HEAD.match(message)
    body = message[head.end() :] if head else ""
    name = (new := _NEW.match(body)) or _KNOWN.match(body)
    if head is None or name is None:
        return None
    reason = " ".join(body[name.end() :].split()).removesuffix(_UNKNOWN)
    if new:
        reason = f"never seen function {reason}".strip()
    if static := changed_static_arguments():
        reason = static if _STATIC in reason else "; ".join(filter(None, [static, reason]))
    caller = f"{head['caller']} {head['where']}"
    return Compilation(name["name"], 0.0, reason=reason or _UNKNOWN, caller=caller)

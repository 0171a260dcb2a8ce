# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Visit`: the facts of one request. `AccessLog` writes them as lines of JSON."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import logging
import queue
import threading
import time
from typing import Any

import orjson

from dovetail_infer.completion import Completion, Tokens
from dovetail_infer.server.limits import Account

_log = logging.getLogger("dovetail_infer.server")
VISIT = "dovetail_infer.visit"  # its key in the scope of a request
_WAITING = 10_000  # lines that wait for a slow disk; more are lost


@dataclasses.dataclass(slots=True, kw_only=True)
class Visit:
    """The facts of one request, as far as they are known.

    Attributes:
        request_id: Its id.
        route: Its route; the path if no route has it.
        account: Of its key. None: it has not been asked for one.
        running: It counts as a request of its account.
        began: Time of its head, by `time.monotonic`.
        model: The model's name.
        status: Status of the response; 499 for a client that went away before.
        prompt_tokens: Tokens of its prompts.
        drawn_tokens: Tokens drawn for it.
        queued_s: Longest time in the queue of its choices.
        first_token_s: Time to its first token.
        reasons: Reasons of its end.
    """

    request_id: str
    route: str
    account: Account | None = None
    running: bool = False
    began: float = dataclasses.field(default_factory=time.monotonic)
    model: str | None = None
    status: int = 499
    prompt_tokens: int = 0
    drawn_tokens: int = 0
    queued_s: float | None = None
    first_token_s: float | None = None
    reasons: set[str] = dataclasses.field(default_factory=set)

    def spend(self, *, prompt: int = 0, drawn: int = 0) -> None:
        """Counts tokens that the engine has taken or drawn."""
        self.prompt_tokens += prompt
        self.drawn_tokens += drawn
        if self.account is not None:
            self.account.spend(prompt + drawn, time.monotonic())

    def take(self, piece: Tokens | Completion) -> None:
        """Notes a piece of the answer."""
        if isinstance(piece, Completion):
            self.reasons.add(piece.finish_reason)
            if piece.times.queued_s is not None:
                self.queued_s = max(self.queued_s or 0.0, piece.times.queued_s)
            return
        if self.first_token_s is None:
            self.first_token_s = time.monotonic() - self.began
        self.spend(drawn=len(piece.tokens))

    def end(self) -> dict[str, Any]:
        """Ends the request. Returns its entry in the log."""
        seconds = time.monotonic() - self.began
        if self.account is not None and self.running:
            self.account.end(seconds)
        times = {"queued_s": self.queued_s, "first_token_s": self.first_token_s, "total_s": seconds}
        return {
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
            "request_id": self.request_id,
            "key": self.account and self.account.name,
            "route": self.route,
            "model": self.model,
            "status": self.status,
            "prompt_tokens": self.prompt_tokens,
            "drawn_tokens": self.drawn_tokens,
            **{name: value and round(value, 6) for name, value in times.items()},
            "reason": ",".join(sorted(self.reasons)),
        }


class AccessLog(contextlib.AbstractContextManager["AccessLog"]):
    """Appends entries to a file as lines of JSON, in a thread of its own, until its block ends.

    Requests never wait for it. A line is lost if the disk is full, or slow for 10,000 lines.

    Args:
        file: Path of the file, or "-" for standard error.

    Attributes:
        lost: Number of lost lines.
    """

    def __init__(self, file: str) -> None:
        self.lost = 0
        # The thread closes it.
        self._file = open(2 if file == "-" else file, "ab", buffering=0, closefd=file != "-")  # noqa: SIM115
        self._entries: queue.Queue[dict[str, Any] | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._run, name="dovetail-access-log", daemon=True)
        self._thread.start()

    def __call__(self, entry: dict[str, Any]) -> None:
        """Writes an entry soon."""
        try:
            self._entries.put_nowait(entry)
        except queue.Full:
            self.lost += 1

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(queue.Full):
            self._entries.put(None, timeout=5)  # a disk may be slow for ever
        self._thread.join(timeout=5)

    def _run(self) -> None:
        cut, before = b"", True
        with self._file as file:
            while (entry := self._entries.get()) is not None:
                line = cut + orjson.dumps(entry) + b"\n"
                try:
                    written, cause = file.write(line) or 0, "only a part was written"
                except OSError as error:
                    written, cause = 0, error
                whole = written == len(line)
                cut = b"" if whole else b"\n" if written else cut  # ends a part of a line
                self.lost += not whole
                if before and not whole:
                    _log.warning("the access log loses lines: %s", cause)
                before = whole

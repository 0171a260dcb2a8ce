# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The lock of a root's writer: the directory `.dovetail-writer` with one file, `TOKEN.json`.

A second writer would delete the unfinished steps of the first, and of two steps with one number a
single one survives. A rename onto a directory with a file in it fails, on local disks and over NFS
alike, and Orbax's commit needs no less. Each process therefore writes its claim under another name
and renames it: one wins, and its name appears with the lock. `flock` does not reach other machines
on every network file system, and tells nobody who holds it.

A lock is stale if its process has ended, or if it was copied with its root. On another machine this
is seen by the heartbeat: the owner touches its file every `BEAT_S`. The ages of files are compared
with a new file, so the clocks of the machines do not matter. A stale lock is renamed aside and then
looked at: of two processes that do so at once, the slower may take the lock of the faster, and puts
it back.
"""

import logging
import os
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dovetail_checkpoint.run.owner import Owner, decode, this_process

LOCK = ".dovetail-writer"
BEAT_S = 10.0
# Six lost beats: a pause that long is a machine that is gone, or a file system that hangs.
STALE_S = 60.0

_logger = logging.getLogger(__name__)
_LOOK_S = 0.5  # between two looks for the heartbeat of another machine
_TRIES = 100  # others may take and leave the lock between a look and a claim, though not for ever


@dataclass(frozen=True, kw_only=True)
class _Held:
    """A lock on disk. `owner` is None if its file is damaged; `beat_s` is the file's time."""

    file: Path
    owner: Owner | None
    beat_s: float

    def __str__(self) -> str:
        return str(self.owner) if self.owner else f"an unreadable {self.file}"


class WriterLock:
    """The lock of the writer of `root`, for this process. Several threads may not share it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._path = root / LOCK
        self._owner: Owner | None = None
        self._beating: threading.Event | None = None

    def hold(self) -> None:
        """Takes the lock, unless this process has it. Waits where a heartbeat must decide.

        Raises:
            RuntimeError: Another process holds it.
            OSError: The root cannot be written.
        """
        if self.is_held():
            return
        self._stop_beating()
        owner = this_process(self._root)
        for _ in range(_TRIES):
            now_s = self._claim(owner)
            if _is_there(self._file(owner)):  # NFS may report a rename that succeeded as failed
                break
            held = self._look()
            if held is not None:
                self._check_stale(held, now_s)
                self._take_aside(held, owner)
        else:
            raise RuntimeError(
                f"the lock {self._path} must be free or name its owner, got neither in {_TRIES} "
                "tries; delete it if no process writes to this directory"
            )
        self._owner = owner
        self._sweep(now_s)
        self._beat()

    def is_held(self) -> bool:
        """Whether this process holds the lock, by what lies on disk."""
        return self._owner is not None and _is_there(self._file(self._owner))

    def release(self) -> None:
        """Gives the lock up, if this process holds it."""
        self._stop_beating()
        owner, self._owner = self._owner, None
        if owner is not None:
            with suppress(OSError):  # gone, or another's by now
                self._file(owner).unlink()
                self._path.rmdir()

    def _file(self, owner: Owner) -> Path:
        return self._path / f"{owner.token}.json"

    def _claim(self, owner: Owner) -> float:
        """Takes the lock if it is free. Returns the file system's time."""
        claim = self._root / f"{LOCK}.{owner.token}"
        claim.mkdir(exist_ok=True)
        try:
            file = claim / f"{owner.token}.json"
            file.write_text(owner.encode(), encoding="utf-8")
            now_s = file.stat().st_mtime
            with suppress(OSError):  # another process has the lock
                claim.rename(self._path)
            return now_s
        finally:
            shutil.rmtree(claim, ignore_errors=True)

    def _look(self) -> _Held | None:
        """Returns the lock on disk, or None if there is none."""
        try:
            file = next(self._path.glob("*.json"), None)
            if file is None:
                return None
            # Opening asks an NFS server anew.
            with open(file, encoding="utf-8", errors="replace") as opened:
                text, beat_s = opened.read(), os.fstat(opened.fileno()).st_mtime
        except FileNotFoundError:
            return None
        return _Held(file=file, owner=decode(text), beat_s=beat_s)

    def _check_stale(self, held: _Held, now_s: float) -> None:
        """Returns if the owner has ended or its heartbeat has.

        Raises:
            RuntimeError: The owner is alive.
        """
        ended = held.owner.has_left(self._root) if held.owner else None
        begun = time.monotonic()
        while ended is None:
            latest = self._look()
            if latest is None or latest.file != held.file:
                return  # given up, or taken over by somebody else: the next claim tells
            if latest.beat_s > held.beat_s:
                ended = False
            elif max(now_s - held.beat_s, 0.0) + time.monotonic() - begun > STALE_S:
                ended = True
            else:
                time.sleep(_LOOK_S)
        if not ended:
            raise RuntimeError(
                f"a directory must have one writer, got {self._root}, to which {held} writes; "
                "wait until it ends or closes its Store, or use another root"
            )

    def _take_aside(self, held: _Held, taker: Owner) -> None:
        aside = self._root / f"{LOCK}.{taker.token}.stale"
        try:
            self._path.rename(aside)
        except OSError:
            return  # somebody was faster: the next claim tells
        if not (aside / held.file.name).exists():
            with suppress(OSError):  # another process took the lock meanwhile
                aside.rename(self._path)
            return
        _logger.warning("%s: takes over from %s, which writes no more", self._root, held)
        shutil.rmtree(aside, ignore_errors=True)

    def _sweep(self, now_s: float) -> None:
        """Deletes the claims of processes that were killed while they claimed."""
        for path in self._root.glob(f"{LOCK}.*"):
            with suppress(OSError):  # another process deletes it, too
                if now_s - path.stat().st_mtime > STALE_S:
                    shutil.rmtree(path)

    def _beat(self) -> None:
        assert self._owner is not None
        ended = threading.Event()
        file = self._file(self._owner)

        def touch() -> None:
            while not ended.wait(BEAT_S):
                try:
                    os.utime(file)
                except FileNotFoundError:
                    return  # taken over: the next save says so
                except OSError as error:
                    _logger.debug("no heartbeat in %s: %s", file, error)

        self._beating = ended
        threading.Thread(target=touch, name="dovetail-heartbeat", daemon=True).start()

    def _stop_beating(self) -> None:
        if self._beating is not None:
            self._beating.set()
            self._beating = None


def _is_there(file: Path) -> bool:
    """Whether a file exists. Opens it: an NFS client may answer `stat` from its memory."""
    try:
        with open(file, "rb"):
            return True
    except OSError:
        return False

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Deployments`: versions of models are loaded, enter the routes, leave them and are drained.

A version whose files changed, but whose digest is the one that is loaded, is verified and not
loaded again. If its weights were changed in memory too, it is withdrawn, and the requests in its
queue are refused.

A version that fails while its files change may be a copy in progress. If there is polling, it is
tried again when they are the same in two passes, and only then has it failed.

A failed version is tried again when its files change. Damage lasts until then. An error of the
machine may pass before: descriptors, memory or a file server come back. So after one of those, the
version is tried again too, at growing intervals.

Draining has no limit but the deadlines of the requests and the grace of `close`. It holds up
nothing: only `unload` waits for it.
"""

import asyncio
import logging
import math
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

from jax.errors import JaxRuntimeError

from dovetail_serve.bundle.digest import file_digest
from dovetail_serve.bundle.manifest import MANIFEST
from dovetail_serve.errors import BundleError, IntegrityError, MemoryExceeded
from dovetail_serve.loading.model import Model, verify
from dovetail_serve.serving.batcher import Batcher
from dovetail_serve.serving.damage import check_weights, written
from dovetail_serve.serving.garbage import collect_unless_gone, freeze
from dovetail_serve.serving.scan import Fingerprint
from dovetail_serve.serving.served import Deployment, Failure, ServedModel, Settling
from dovetail_serve.serving.statistics import Recorder

Result = TypeVar("Result")
Fingerprints = Mapping[int, Fingerprint]

# Seconds from a failed load to the next one, after an error that may pass; doubled each time. Loads
# of a large model take minutes of the disk and the compiler.
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 300.0

# Seconds from the end of a version to a look whether its model has gone. Tasks and threads let go
# of it just after its last answer.
COLLECT_AFTER_S = 1.0

_log = logging.getLogger("dovetail_serve")


class Deployments:
    """Loads and releases the versions of a repository.

    Args:
        root: The repository.
        load: Loads the bundle at a path; arrays may be shared with the models that are given. Runs
            on a thread.
        batcher: Makes the batcher of a loaded model, with the name and the version's counts.
        threads: Does the work on files.
        polls: Whether passes follow, so that a version may wait for its files.
    """

    def __init__(
        self,
        root: Path,
        *,
        load: Callable[[Path, Sequence[Model]], Model],
        batcher: Callable[[str, Model, Recorder], Batcher],
        threads: Executor,
        polls: bool,
    ) -> None:
        self._root, self._load, self._batcher, self._threads = root, load, batcher, threads
        self._polls = polls
        self._draining: set[asyncio.Task[None]] = set()

    async def update(
        self,
        served: ServedModel,
        versions: Sequence[int],
        files: Fingerprints,
        asked: float | None,
    ) -> None:
        """Loads those of `versions` that are new or have changed, the newest first.

        A version that fails may take others with it that share its weights. They are loaded again.

        Args:
            served: The model.
            versions: Versions, ascending.
            files: Fingerprint of each version in the repository.
            asked: Time of an explicit order, which tries failed versions again.
        """
        now = time.monotonic()  # of the pass: no version fails in it for ever
        ordered = asked is not None
        while outdated := [
            version
            for version in versions
            if (ordered or version not in served.changing)
            and _outdated(served, version, files, asked, now)
        ]:
            settled = ordered or outdated[-1] in served.settling or not self._polls
            await self._bring_up(served, outdated[-1], files, settled=settled)

    def retire(
        self, served: ServedModel, version: int, grace_s: float | None = None
    ) -> asyncio.Future[None]:
        """Takes a ready version out of the routes and starts to drain it.

        Args:
            served: The model.
            version: The version.
            grace_s: Seconds after which waiting requests get `NotReady`. None: never.

        Returns:
            Done when the version is drained. Cancelling it does not stop the drain.
        """
        return self._drain(served, served.withdraw(version), grace_s)

    async def close(self, models: Collection[ServedModel], grace_s: float) -> None:
        """Withdraws and drains all. Requests without an answer after `grace_s` get `NotReady`."""
        for served in models:
            for version in list(served.ready):
                served.withdraw(version)
            # Those of earlier swaps too.
            for deployment in list(served.draining):
                self._drain(served, deployment, grace_s)
        await asyncio.gather(*self._draining)

    async def _bring_up(
        self, served: ServedModel, version: int, files: Fingerprints, *, settled: bool
    ) -> None:
        """Loads a version, warms it up and routes requests to it; or notes why not.

        Args:
            served: The model.
            version: The version.
            files: Fingerprint of each version in the repository.
            settled: Its files are the same as in the last pass, or no pass follows.
        """
        began, start = time.monotonic(), time.perf_counter()
        recorder = served.recorder(version)
        served.loading.add(version)
        try:
            deployment = await self._deployment(served, version, files)
        # Whatever a bundle or a device raises: the others go on, and the index has the reason.
        except Exception as error:
            if version in served.ready:
                await self._withdraw_damaged(served, served.ready[version], files.get(version, ()))
            if not settled and isinstance(error, BundleError | FileNotFoundError):
                self._wait_for_files(served, version, files.get(version, ()), error)
                return
            served.settling.pop(version, None)
            recorder.failed_loads += 1
            _log.error(
                "failed model=%s version=%d seconds=%.3f reason=%s%s",
                *(served.name, version, time.perf_counter() - start, error, _trace(error)),
            )
            wait_s = _wait_s(error, served.failures.get(version))
            served.failures[version] = Failure(
                error=bare(error),
                fingerprint=files.get(version, ()),
                began=began,
                again_at=time.monotonic() + wait_s,
                wait_s=wait_s,
            )
            return
        finally:
            served.loading.discard(version)
        served.settling.pop(version, None)
        if deployment is None:
            return
        recorder.loads += 1
        replaced = served.install(version, deployment)
        freeze()
        _log.info(
            "%s model=%s version=%d digest=%s seconds=%.3f",
            *("swapped" if replaced else "loaded", served.name, version),
            *(deployment.model.digest, time.perf_counter() - start),
        )
        if replaced is not None:
            damaged = await self._withdraw_damaged(served, replaced, files.get(version, ()))
            self._drain(served, replaced, 0.0 if damaged else None)

    def _wait_for_files(
        self, served: ServedModel, version: int, files: Fingerprint, error: Exception
    ) -> None:
        file = error.file if isinstance(error, IntegrityError) else MANIFEST
        reason = f"its files may still be on their way: {file} is not as its digests say"
        served.failures.pop(version, None)
        served.settling[version] = Settling(files, reason)
        served.changing.add(version)
        _log.info("waiting model=%s version=%d reason=%s", served.name, version, reason)

    async def _deployment(
        self, served: ServedModel, version: int, by_version: Fingerprints
    ) -> Deployment | None:
        """Returns a warm deployment, or None if the version's bundle serves already."""
        path = self._root / served.name / str(version)
        files = by_version.get(version, ())
        if version in by_version and not files:
            await self._on_thread(_digest, path)  # raises the reason why it cannot be read
        current = served.ready.get(version)
        if current and files and await self._on_thread(_digest, path) == current.model.digest:
            # Mapped files are the weights in use, so a change of theirs must not stay unseen.
            await self._on_thread(verify, path)
            current.fingerprint = files
            served.failures.pop(version, None)
            return None
        loaded = [
            deployment.model
            for number, deployment in served.ready.items()
            if not deployment.model.maps_weights
            or not written(deployment.fingerprint, by_version.get(number, ()))
        ]
        model = await self._on_thread(self._load, path, loaded)
        recorder = served.recorder(version)
        batcher = self._batcher(served.name, model, recorder)
        try:
            await batcher.warm_up()
        except BaseException:
            await batcher.drain(0)
            raise
        return Deployment(
            version=str(version),
            model=model,
            batcher=batcher,
            recorder=recorder,
            fingerprint=files,
        )

    async def _withdraw_damaged(
        self, served: ServedModel, current: Deployment, files: Fingerprint
    ) -> bool:
        """Withdraws a deployment whose weights in memory have changed, and those that share them.

        Args:
            served: The model.
            current: The deployment. It may be withdrawn already.
            files: Fingerprint of its directory now.

        Returns:
            Whether its weights have changed.
        """
        try:
            await self._on_thread(check_weights, current.model, current.fingerprint, files)
        except IntegrityError as damage:
            error = bare(damage)
        else:
            return False
        for version, other in list(served.ready.items()):
            if other is current or other.model.shares(current.model):
                _log.error("withdrawn model=%s version=%d reason=%s", served.name, version, error)
                again = Failure(error=error, fingerprint=None, began=time.monotonic())
                served.failures.setdefault(version, again)
                # Without a grace: the answers to those that wait would be wrong.
                self.retire(served, version, 0.0)
        return True

    def _drain(
        self, served: ServedModel, deployment: Deployment, grace_s: float | None = None
    ) -> asyncio.Future[None]:
        """Starts to drain a withdrawn deployment; one that drains already gets the new limit.

        Shielded, because `close` cancels passes, but no request.
        """
        drain = asyncio.get_running_loop().create_task(self._release(served, deployment, grace_s))
        self._draining.add(drain)  # the event loop refers to it weakly
        drain.add_done_callback(self._draining.discard)
        return asyncio.shield(drain)

    async def _release(
        self, served: ServedModel, deployment: Deployment, grace_s: float | None
    ) -> None:
        start = time.perf_counter()
        await deployment.batcher.drain(grace_s)
        if deployment not in served.draining:  # `close` has waited for it too
            return
        served.draining.remove(deployment)
        _log.info(
            "released model=%s version=%s digest=%s seconds=%.3f",
            *(served.name, deployment.version, deployment.model.digest),
            time.perf_counter() - start,
        )
        model = weakref.ref(deployment.model)
        asyncio.get_running_loop().call_later(COLLECT_AFTER_S, collect_unless_gone, model)

    def _on_thread(self, work: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)


def _outdated(
    served: ServedModel,
    version: int,
    by_version: Fingerprints,
    asked: float | None,
    now: float,
) -> bool:
    """Whether a version must be loaded: it is not, its files changed, or it may succeed now."""
    files = by_version.get(version, ())
    failure = served.failures.get(version)
    if failure is not None:
        ordered = asked is not None and failure.began < asked
        return failure.fingerprint != files or ordered or failure.again_at <= now
    current = served.ready.get(version)
    return current is None or current.fingerprint != files


def _wait_s(error: Exception, last: Failure | None) -> float:
    """Returns the seconds to the next attempt; infinite for an error that lasts."""
    if not isinstance(error, OSError | MemoryError | MemoryExceeded | JaxRuntimeError):
        return math.inf
    if last is None or math.isinf(last.wait_s):
        return FIRST_WAIT_S
    return min(2 * last.wait_s, LONGEST_WAIT_S)


def _digest(path: Path) -> str:
    return f"sha256:{file_digest(path / MANIFEST)}"


def _trace(error: Exception) -> str:
    """Returns the traceback of an error unless it is the fault of a bundle or a disk.

    As text: a handler that keeps records would keep the frames, and their arrays.
    """
    if isinstance(error, BundleError | OSError):
        return ""
    return "\n" + "".join(traceback.format_exception(error)).rstrip()


def bare(error: Exception) -> Exception:
    """Returns the error without tracebacks, its causes too: their frames would keep arrays."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Repository`: keeps the loaded models equal to the disk, without a lost request.

A pass over one model compares its directory with the loaded versions. Passes over a model follow
one another, so no version is loaded twice at a time. As many loads run at once as there are CPUs;
others wait for them, and polling does not. In a pass:

1. Each wanted version that is new, or whose files changed, is verified, placed, compiled and run
   with the example's inputs, on a thread. Meanwhile all others answer.
2. It enters the routes. A bundle replaced in its directory leaves them and is drained.
3. While one of the latest N versions fails, the newest other one that loads has its place.
4. Versions no longer wanted leave and are drained.

A version that failed is tried again when its fingerprint changes, or by `load`. Polling also tries
it again after an error of the machine, which may pass.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dovetail_serve._patterns import near
from dovetail_serve.errors import ModelNotFound, NotReady
from dovetail_serve.loading.model import Model
from dovetail_serve.serving.batcher import Batcher
from dovetail_serve.serving.deployments import Deployments, Fingerprints, bare
from dovetail_serve.serving.root import Root
from dovetail_serve.serving.served import ServedModel
from dovetail_serve.serving.statistics import Recorder
from dovetail_serve.serving.versions import Policy, check_models

_log = logging.getLogger("dovetail_serve")


class Repository:
    """The loaded models of a repository.

    Args:
        root: The directory.
        policy: Versions to load.
        load: Loads the bundle at a path; arrays may be shared with the models that are given. Runs
            on a thread.
        batcher: Makes the batcher of a loaded model, with the name and the version's counts.
        named: Names of models in a server's options, by option.
        poll_s: Interval between two passes, in seconds. 0: none but those by `load`.

    Attributes:
        accepting: Whether requests may be routed. `open` sets it after the first listing; the
            server clears it.
    """

    def __init__(
        self,
        root: Path,
        *,
        policy: Policy,
        load: Callable[[Path, Sequence[Model]], Model],
        batcher: Callable[[str, Model, Recorder], Batcher],
        named: Mapping[str, Collection[str]],
        poll_s: float,
    ) -> None:
        self._policy, self._named, self._poll_s = policy, named, poll_s
        self._models: dict[str, ServedModel] = {}
        self._passes: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(os.cpu_count(), "dovetail-serve-load")
        # Another thread: listings must not wait for loads, which can take minutes.
        self._listings = ThreadPoolExecutor(1, "dovetail-serve-list")
        self._root = Root(root, self._listings)
        self._deployments = Deployments(
            root, load=load, batcher=batcher, threads=self._threads, polls=poll_s > 0
        )
        self._unreadable = ""
        self._closed = False
        self.accepting = False

    async def open(self) -> None:
        """Makes the first pass over all models, and starts to poll. `close` ends it early.

        Raises:
            OSError: The repository cannot be read.
            ValueError: It is a bundle, or an option names a model that it lacks.
        """
        names = await self._root.models(self._serving)
        if self._closed:
            return
        for option, expected in self._named.items():
            check_models(option, expected, names)
        if not names:
            _log.warning("empty repository=%s", self._root.path)
        for name in names:
            self._served(name).required = True
        self.accepting = True
        passes = [self._start(self._pass(self._served(name))) for name in names]
        results = await asyncio.gather(*passes, return_exceptions=True)
        for result in results:
            # `close` cancels passes, which is no error of theirs.
            if isinstance(result, BaseException) and not self._closed:
                raise result
        if self._poll_s and not self._closed:
            self._start(self._poll())

    async def close(self, grace_s: float) -> None:
        """Stops to load and to poll, answers queued requests, and releases all.

        Requests without an answer after `grace_s` seconds are refused.
        """
        self._closed = True
        passes = list(self._passes)
        for task in passes:
            task.cancel()
        await asyncio.gather(*passes, return_exceptions=True)
        for threads in (self._threads, self._listings):
            threads.shutdown(wait=False)
        await self._deployments.close(self._models.values(), grace_s)

    @property
    def _serving(self) -> Set[str]:
        """Names of the models with a ready version."""
        return {name for name, served in self._models.items() if served.ready}

    def find(self, name: str) -> ServedModel:
        """Returns a model. Raises ModelNotFound."""
        served = self._models.get(name)
        if served is None or not served.known:
            raise self._unknown(name)
        return served

    def models(self) -> list[ServedModel]:
        """Returns the models by name."""
        return [served for _, served in sorted(self._models.items()) if served.known]

    async def load(self, name: str) -> None:
        """Makes a pass over one model. It also tries failed versions again.

        Raises:
            ModelNotFound: The repository has no such model, or none of its versions.
            NotReady: `close` was called meanwhile.
            Exception: The error of the wanted version.
        """
        asked = time.monotonic()
        # Names come from requests: only those of directories get an entry.
        if name not in self._models and name not in await self._root.models(self._serving):
            raise self._unknown(name)
        if self._closed:
            raise _stopped(name)
        served = self._served(name)
        await self._finish(name, self._pass(served, asked))
        if not served.known:
            raise self._unknown(name)
        failures = [served.failures[v] for v in served.wanted if v in served.failures]
        if failures:
            raise bare(failures[-1].error)

    async def unload(self, name: str) -> None:
        """Withdraws a model, answers its requests, and releases it.

        Polling leaves it unloaded. Raises ModelNotFound.
        """
        await self._finish(name, self._unload(self.find(name)))

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(self._poll_s)
            try:
                names = {*await self._root.models(self._serving), *self._models}
            except (OSError, ValueError) as error:
                # A file server that is away must not unload anything.
                if str(error) != self._unreadable:
                    self._unreadable = str(error)
                    _log.warning("unreadable repository=%s reason=%s", self._root.path, error)
                continue
            self._unreadable = ""
            for served in map(self._served, sorted(names)):
                # A slow load delays the passes over its own model alone.
                if not served.lock.locked():
                    self._start(self._pass(served))

    async def _pass(self, served: ServedModel, asked: float | None = None) -> None:
        """Compares a model with its directory. `asked` is the time of an explicit order."""
        async with served.lock:
            if asked is not None:
                served.unloaded = False
            try:
                listing = await self._root.versions(served.name, self._serving)
            except (OSError, ValueError) as error:
                if str(error) != served.unreadable:
                    served.unreadable = str(error)
                    _log.warning("unreadable model=%s reason=%s", served.name, error)
                if asked is not None:
                    raise
                return
            files = listing.fingerprints
            wanted = self._policy.wanted(served.name, files)
            served.listed(files, wanted)
            if served.unloaded:
                return
            await self._deployments.update(served, wanted, files, asked)
            substitutes = await self._substitute(served, files, asked)
            served.settled(tuple(sorted({*substitutes, *wanted})))
            for version in served.ready.keys() - (set(served.wanted) & set(served.available)):
                self._deployments.retire(served, version)

    async def _unload(self, served: ServedModel) -> None:
        async with served.lock:
            served.unloaded = True
            drains = [self._deployments.retire(served, version) for version in [*served.ready]]
        # Without the lock: a load need not wait for the last answer.
        await asyncio.gather(*drains)

    async def _substitute(
        self, served: ServedModel, files: Fingerprints, asked: float | None
    ) -> tuple[int, ...]:
        """Loads the newest other versions while some of the latest N fail. Returns those tried."""
        latest = self._policy.latest or 0
        newest = sorted(files, reverse=True)
        failed = [version for version in newest[:latest] if version not in served.ready]
        tried: list[int] = []
        for version in newest[latest:]:
            if not failed:
                break
            tried.append(version)
            serves = version in served.ready
            await self._deployments.update(served, [version], files, asked)
            if version in served.ready:
                instead = failed.pop()
                if not serves:
                    _log.warning(
                        "substitute model=%s version=%d failed=%d", served.name, version, instead
                    )
        return tuple(tried)

    def _served(self, name: str) -> ServedModel:
        if name not in self._models:
            self._models[name] = ServedModel(name, self._policy.labels.get(name, {}))
        return self._models[name]

    def _unknown(self, name: str) -> ModelNotFound:
        names = [served.name for served in self.models()]
        return ModelNotFound(
            f"a model must be in the repository with a version, got name={name!r}; write "
            f"{near(name, names) or 'the name of a directory, after a bundle is there'}"
        )

    async def _finish(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` to its end, even if the caller goes away.

        Otherwise its thread would go on loading while the next order loads the version again.
        """
        task = self._start(work)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise
            raise _stopped(name) from None

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task and keeps it, since the event loop refers to it weakly."""
        task = asyncio.get_running_loop().create_task(work)
        self._passes.add(task)
        task.add_done_callback(self._passes.discard)
        return task


def _stopped(name: str) -> NotReady:
    return NotReady(
        f"the server must run until the end, and was stopped while it loaded {name!r}; start it "
        "again"
    )

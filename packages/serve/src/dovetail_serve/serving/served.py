# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`ServedModel`: the versions of one model, and the route from a request to one of them.

A request takes its `Deployment` once and keeps it, so an answer always comes from one version. A
replaced version leaves the routes first and is drained afterwards.
"""

import asyncio
import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

from dovetail_serve._patterns import near
from dovetail_serve.errors import ModelNotFound, NotReady, RequestError
from dovetail_serve.loading.model import Model
from dovetail_serve.serving.batcher import Batcher
from dovetail_serve.serving.scan import Fingerprint
from dovetail_serve.serving.statistics import Recorder, Statistics
from dovetail_serve.serving.versions import version_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class VersionState:
    """The state of one version of a model.

    Attributes:
        name: Name of the model.
        version: Name of the version; empty for a model whose directory cannot be read.
        state: "LOADING", "READY" or "UNAVAILABLE".
        reason: Why it is unavailable, or waits for its files. For a ready version, why the bundle
            meant to replace it in its directory was refused, or waits. Empty otherwise.
        digest: Digest of the loaded bundle; empty if there is none.
        provenance: Texts of the exporter, such as the digest of a training checkpoint.
    """

    name: str
    version: str
    state: str
    reason: str = ""
    digest: str = ""
    provenance: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(eq=False, kw_only=True)
class Deployment:
    """A loaded and warm version.

    Attributes:
        version: Name of the version.
        model: The loaded bundle.
        batcher: Joins and runs its requests.
        recorder: Counts them.
        fingerprint: Its files at their last comparison.
    """

    version: str
    model: Model
    batcher: Batcher
    recorder: Recorder
    fingerprint: Fingerprint


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """A failed attempt to load a version.

    Attributes:
        error: The error, without a traceback: its frames would keep arrays alive.
        fingerprint: The files of the attempt; None to try again in any case.
        began: `time.monotonic()` at the start of the attempt.
        again_at: `time.monotonic()` of the next attempt with the same files; infinite for none.
        wait_s: Seconds from the end of the attempt to `again_at`.
    """

    error: Exception
    fingerprint: Fingerprint | None
    began: float
    again_at: float = math.inf
    wait_s: float = math.inf


class Settling(NamedTuple):
    """A version that failed to load when its files had just changed.

    Attributes:
        fingerprint: Its files in the last pass. It is tried again once they are the same in two.
        reason: Why it waits.
    """

    fingerprint: Fingerprint
    reason: str


class ServedModel:
    """The versions of one model.

    Attributes:
        name: Name of the model.
        lock: Held by a pass over the model.
        available: Versions in the repository.
        wanted: Versions to load, those in place of failed ones included.
        ready: Deployments by version.
        loading: Versions in the process of loading.
        failures: The last failed attempt of a version.
        settling: Versions whose files may be on their way still.
        changing: Those of them whose files have changed since the pass before this one.
        draining: Withdrawn deployments with requests left.
        unloaded: Whether `unload` was the last order.
        required: Whether the server's readiness depends on it.
        unreadable: Why its directory could not be read in the last pass; empty if it was.
    """

    def __init__(self, name: str, labels: Mapping[str, int]) -> None:
        self.name = name
        self.lock = asyncio.Lock()
        self.available: tuple[int, ...] = ()
        self.wanted: tuple[int, ...] = ()
        self.ready: dict[int, Deployment] = {}
        self.loading: set[int] = set()
        self.failures: dict[int, Failure] = {}
        self.settling: dict[int, Settling] = {}
        self.changing: set[int] = set()
        self.draining: set[Deployment] = set()
        self.unloaded = False
        self.required = False
        self.unreadable = ""
        self._labels = labels
        self._looked = False
        self._latest: Deployment | None = None
        self._routes: dict[str, Deployment] = {}
        self._recorders: dict[int, Recorder] = {}

    @property
    def known(self) -> bool:
        """Whether the repository has the model, it still serves, or nobody has looked yet."""
        return not self._looked or bool(self.available or self.ready or self.wanted)

    @property
    def has_failed(self) -> bool:
        """Whether it should serve, and no version does."""
        return bool(self.wanted or self.unreadable) and not (self.unloaded or self.ready)

    def listed(self, files: Mapping[int, Fingerprint], wanted: tuple[int, ...]) -> None:
        """Notes the versions in the repository, by their files, and those to load."""
        self.available, self.wanted, self._looked = tuple(sorted(files)), wanted, True
        self.unreadable = ""
        last = {version: waits.fingerprint for version, waits in self.settling.items()}
        self.changing = {v for v in last if last[v] != files.get(v, ())}
        for version in self.changing:
            self.settling[version] = self.settling[version]._replace(
                fingerprint=files.get(version, ())
            )

    def settled(self, wanted: tuple[int, ...]) -> None:
        """Notes the versions to load at the end of a pass, and forgets the failures of others."""
        self.wanted = wanted
        for version in self.failures.keys() - set(wanted):
            del self.failures[version]
        for version in self.settling.keys() - set(wanted):
            del self.settling[version]

    def route(self, version: str | None) -> Deployment:
        """Returns the deployment of a version or label; the latest for None.

        Raises ModelNotFound or NotReady.
        """
        deployment = self._latest if version is None else self._routes.get(version)
        if deployment is None:
            raise self._refusal(version)
        return deployment

    def install(self, version: int, deployment: Deployment) -> Deployment | None:
        """Routes requests to a deployment. Returns the replaced one, to be drained."""
        replaced = self.ready.get(version)
        if replaced is not None:
            self.draining.add(replaced)
        self.ready[version] = deployment
        self.failures.pop(version, None)
        self.settling.pop(version, None)
        self._reroute()
        return replaced

    def withdraw(self, version: int) -> Deployment:
        """Takes a ready version out of the routes. Returns its deployment, to be drained."""
        deployment = self.ready.pop(version)
        self.draining.add(deployment)
        self._reroute()
        return deployment

    def recorder(self, version: int) -> Recorder:
        """Returns the counts of a version: of all bundles under its number since the start.

        They are kept when it leaves, because it can come back, and counters must not fall.
        """
        return self._recorders.setdefault(version, Recorder())

    def statistics(self, version: str | None) -> Statistics:
        """Returns the counts of a version or label, or of all versions, released ones included.

        Raises ModelNotFound or NotReady if the version was never loaded.
        """
        if version is None:
            return sum((self._read(number) for number in self._recorders), Statistics())
        number = self._labels.get(version, version_of(version))
        if number not in self._recorders:
            raise self._refusal(version)
        return self._read(number)

    def states(self, policy: str) -> list[VersionState]:
        """Returns the state of each version, ascending. `policy` is for the reasons."""
        versions = sorted({*self.available, *self.wanted, *self.ready})
        if not versions and self.unreadable:
            reason = "unloaded" if self.unloaded else self.unreadable
            return [VersionState(name=self.name, version="", state="UNAVAILABLE", reason=reason)]
        return [self._state(version, policy) for version in versions]

    def _read(self, version: int) -> Statistics:
        deployments = (*self.ready.values(), *self.draining)
        queued = sum(d.batcher.queued for d in deployments if d.version == str(version))
        return self._recorders[version].read(queued)

    def _reroute(self) -> None:
        labelled = {label: self.ready.get(version) for label, version in self._labels.items()}
        self._latest = self.ready[max(self.ready)] if self.ready else None
        self._routes = {d.version: d for d in self.ready.values()}
        self._routes |= {label: d for label, d in labelled.items() if d is not None}

    def _state(self, version: int, policy: str) -> VersionState:
        failure = self.failures.get(version)
        reason = str(failure.error) if failure else ""
        if version in self.settling:
            reason = self.settling[version].reason
        deployment = self.ready.get(version)
        if deployment is not None:
            return VersionState(
                name=self.name,
                version=deployment.version,
                state="READY",
                reason=reason,
                digest=deployment.model.digest,
                provenance=deployment.model.manifest.provenance,
            )
        if version in self.loading:
            return VersionState(name=self.name, version=str(version), state="LOADING")
        if self.unloaded:
            reason = "unloaded"
        elif version not in self.wanted:
            reason = f"versions={policy} does not choose it"
        elif not reason or version in self.settling:
            return VersionState(
                name=self.name, version=str(version), state="LOADING", reason=reason
            )
        return VersionState(
            name=self.name, version=str(version), state="UNAVAILABLE", reason=reason
        )

    def _refusal(self, version: str | None) -> RequestError:
        """Returns the error for a version without a route."""
        rule = f"the version must be loaded, got version={version or 'latest'!r} of {self.name!r}"
        failed = f"{rule}, which failed to load; the repository's index has the reason"
        if not self._looked:
            if self.unreadable:
                return NotReady(failed)
            return NotReady(f"{rule}, which is loading; send the request again later")
        number = None if version is None else self._labels.get(version, version_of(version))
        wanted = self.wanted if version is None else (number,)
        if not set(self.wanted).intersection(wanted):
            names = [*map(str, self.wanted), *self._labels]
            return ModelNotFound(
                f"a version of {self.name!r} must be one that the server loads, got "
                f"version={version!r}; write {near(str(version), names) or 'none'}, or leave it out"
            )
        if self.unloaded:
            return NotReady(f"{rule}, which was unloaded; load the model")
        # The reason holds paths of this machine, so it is for the index and the log.
        if self.failures.keys() & set(wanted) and not self.loading.intersection(wanted):
            return NotReady(failed)
        return NotReady(f"{rule}, which is loading; send the request again later")

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Server`: the models of a repository behind one asynchronous interface, without a protocol.

HTTP and gRPC are thin layers over this class, and a program can embed it without either.
"""

import asyncio
import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from dovetail_serve import _elsewhere
from dovetail_serve.errors import NotReady, RequestError
from dovetail_serve.loading.check import check_inputs
from dovetail_serve.loading.memory import WeightMemory, log_memory
from dovetail_serve.loading.model import Model, Verify, load
from dovetail_serve.serving.answer import Answer
from dovetail_serve.serving.batcher import Batcher
from dovetail_serve.serving.options import Batching
from dovetail_serve.serving.repository import Repository
from dovetail_serve.serving.served import Deployment
from dovetail_serve.serving.served import VersionState as VersionState  # for the package's exports
from dovetail_serve.serving.statistics import Recorder, Statistics
from dovetail_serve.serving.versions import parse_policy
from dovetail_serve.types import Array, HostCall, Tensor

Ready = Literal["all", "any"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Metadata:
    """Description of a ready version.

    Attributes:
        name: Name of the model.
        version: Name of the version.
        versions: All ready versions of the model, ascending.
        platform: "jax_stablehlo", as the Open Inference Protocol names the kind of a model.
        inputs: Tensors of a request, host functions included.
        outputs: Tensors of the answer.
        batch_sizes: Numbers of rows with a program of their own; empty without a batch axis.
        digest: The bundle's identity, "sha256:...".
        provenance: Texts of the exporter, such as the digest of a training checkpoint.
    """

    name: str
    version: str
    versions: tuple[str, ...]
    platform: str
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    batch_sizes: tuple[int, ...]
    digest: str
    provenance: Mapping[str, str]


@_elsewhere.server
class Server:
    """Serves the bundles of a repository: `repository/NAME/VERSION`.

    Use it in one event loop: `async with Server("repo") as server`.

    A replaced, deleted or unloaded version answers all requests that it has; their deadlines bound
    the time.

    A directory is a version once it has a manifest. `Bundle.save` writes one in whole; an upload
    by other means, seen too early, fails to load, and is tried again when its files change. After
    an error of the machine, such as one of its disk or memory, polling also tries it again after 1,
    2, 4 and up to 300 seconds.

    Args:
        repository: Directory with a directory for each model, with a bundle for each version.
            Versions are integers from 1; the largest is the latest.
        versions: Versions to load: "latest:2", "all", or a mapping from names of models to tuples
            of versions. With a mapping, other models are not loaded. While some of the latest
            fail to load, the newest others that load take their places.
        labels: Names for versions, by model: {"mlp": {"stable": 3}}. A request may give the label
            in place of the version. Labelled versions are loaded beside those of `versions`.
        poll_s: Interval between two looks at the repository, in seconds. 0: never. A repository
            in which no serving model is left counts as away and unloads nothing.
        batching: How requests are joined; one for all models, or a mapping from names.
        verify: As for `load`. A version is verified before it takes the place of another.
        devices: As for `load`.
        functions: Host functions by name, as for `load`.
        finite: Answer requests whose results have NaN or infinities with `ExecutionError`.
        ready: "all": the server is ready when each model of the start has a ready version, as the
            Open Inference Protocol defines it. "any": as soon as one has.
        map_weights: Map the files of weights on CPUs, as for `load`. False reads them into memory:
            those of all models up to 75% of this machine's. Beyond that a version is refused.

    Raises:
        TypeError: A version is not an integer.
        ValueError: `versions`, `labels`, `poll_s` or `ready` is wrong.
    """

    def __init__(
        self,
        repository: str | os.PathLike[str],
        *,
        versions: str | Mapping[str, Sequence[int]] = "latest:1",
        labels: Mapping[str, Mapping[str, int]] | None = None,
        poll_s: float = 0.0,
        batching: Batching | Mapping[str, Batching] | None = None,
        verify: Verify = "full",
        devices: Sequence[Any] | None = None,
        functions: Mapping[str, HostCall] | None = None,
        finite: bool = False,
        ready: Ready = "all",
        map_weights: bool = False,
    ) -> None:
        if ready not in get_args(Ready):
            raise ValueError(
                f'ready must be "all" or "any", got ready={ready!r}; write ready="all" for a '
                "server that is ready once each model has a version"
            )
        if not 0 <= poll_s < float("inf"):
            raise ValueError(
                f"poll_s must be a number of seconds from 0, got poll_s={poll_s}; write poll_s=5, "
                "or 0 to look at the repository once"
            )
        self._batching = batching or Batching()
        self._options: dict[str, Any] = {
            "verify": verify,
            "devices": devices,
            "functions": functions,
            "map_weights": map_weights,
            "memory": WeightMemory(),
        }
        self._finite, self._ready = finite, ready
        self._policy = parse_policy(versions, labels)
        self._repository = Repository(
            Path(repository).absolute(),
            policy=self._policy,
            load=self._load_bundle,
            batcher=self._batcher,
            named={
                "versions": self._policy.named or {},
                "labels": self._policy.labels,
                "batching": batching if isinstance(batching, Mapping) else {},
            },
            poll_s=poll_s,
        )
        self._state: Literal["new", "starting", "open", "stopping", "stopped"] = "new"
        self._stopping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Server":
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Loads the repository. Returns when every model is ready or has failed.

        Ready models take requests meanwhile, and `live` is true from the beginning: start
        it in a task to answer probes during a long load. A failed version is logged, and
        `index` has the reason; the others are served.

        Raises:
            OSError: The repository cannot be read.
            RuntimeError: The server was started before, or is stopped meanwhile.
            ValueError: The repository is a bundle, or an option names an absent model.
        """
        if self._state != "new":
            raise RuntimeError(
                f"a server must be started once, got one that is {self._state}; make a new Server"
            )
        self._state = "starting"
        log_memory(None if self._options["map_weights"] else self._options["memory"])
        try:
            await self._repository.open()
        except BaseException:
            await self.stop(0.0)
            raise
        if self._stopping is not None:
            await self.stop()
            raise RuntimeError(
                "a server must run until its models are loaded, got stop() meanwhile; make a new "
                "Server"
            )
        self._state = "open"

    async def stop(self, grace_s: float = 30.0) -> None:
        """Refuses new requests, answers those it has, and releases all models.

        A start in progress ends. A batch that runs after the grace is not waited for, but the
        interpreter waits for its thread at exit.

        Requests without an answer after `grace_s` seconds fail with `NotReady`. A second call
        waits for the first.
        """
        if self._stopping is None:
            self._state = "stopping"
            self._repository.accepting = False  # now, and not when the task begins
            self._stopping = asyncio.get_running_loop().create_task(self._stop(grace_s))
        await asyncio.shield(self._stopping)

    async def _stop(self, grace_s: float) -> None:
        await self._repository.close(grace_s)
        self._state = "stopped"

    @property
    def live(self) -> bool:
        """Whether the server runs: from `start` to the end of `stop`."""
        return self._state not in ("new", "stopped")

    @property
    def ready(self) -> bool:
        """Whether the server takes requests and every model of the start has a ready version.

        A model whose directory cannot be read has none. Unloaded and deleted models do not count.
        Neither do later ones: a bad upload must not take a working server out of its load balancer.
        With `ready="any"`, one ready version of one model is enough, also while others load.
        `model_ready` tells of each.
        """
        models = self._repository.models()
        if self._ready == "any" and any(model.ready for model in models):
            return self._repository.accepting
        return self._state == "open" and not any(m.required and m.has_failed for m in models)

    def model_ready(self, name: str, version: str | None = None) -> bool:
        """Whether a request to this model, and this version or label, would be taken.

        Raises ModelNotFound.
        """
        try:
            self._repository.find(name).route(version)
        except NotReady:
            return False
        return self._repository.accepting

    async def infer(
        self,
        name: str,
        inputs: Mapping[str, Array],
        *,
        version: str | None = None,
        priority: int = 0,
        deadline_s: float | None = None,
    ) -> Answer:
        """Answers one request. Cancelling the task drops the request if it has not begun.

        Args:
            name: Name of the model.
            inputs: Arrays by name, of the model's dtypes, with any number of rows.
            version: Version or label. Default: the latest ready one.
            priority: 0 is served first.
            deadline_s: Seconds from now. Work that has not begun by then is dropped.

        Returns:
            The outputs and their version.

        Raises:
            RequestError: One of its kinds; see dovetail_serve.errors.
        """
        deployment = self._route(name, version)
        start = time.perf_counter()
        try:
            rows = check_inputs(deployment.model.signature, inputs)
            # No await before this one: a version is drained after the routes have left it, so
            # every request that was routed to it is in its queue by then.
            outputs, timing = await deployment.batcher.infer(
                inputs, 1 if rows is None else rows, priority=priority, deadline_s=deadline_s
            )
        except (Exception, asyncio.CancelledError) as error:
            cancelled = isinstance(error, asyncio.CancelledError)
            kind = "cancelled" if cancelled else type(error).__name__
            deployment.recorder.failed(kind, time.perf_counter() - start)
            raise
        deployment.recorder.answered(timing)
        return Answer(outputs=outputs, model=name, version=deployment.version, timing=timing)

    def admit(
        self,
        name: str,
        *,
        version: str | None = None,
        priority: int = 0,
        deadline_s: float | None = None,
    ) -> Model:
        """Raises the error that a request which comes now would get, before it is decoded.

        Reading and decoding a body may take more than the answer. Ask before both.

        Args:
            name: Name of the model.
            version: Version or label. Default: the latest ready one.
            priority: Its level; 0 if that is not known yet.
            deadline_s: Seconds from now; None for the server's default, and infinite if that is
                not known yet.

        Returns:
            The model that would answer.

        Raises:
            RequestError: One of its kinds, as `infer`; it is counted like those.
        """
        deployment = self._route(name, version)
        try:
            deployment.batcher.admit(priority=priority, deadline_s=deadline_s)
        except RequestError as error:
            deployment.recorder.failed(type(error).__name__, 0.0)
            raise
        return deployment.model

    def model(self, name: str, version: str | None = None) -> Model:
        """Returns the model that answers requests to a version or label.

        Raises ModelNotFound, or NotReady, also if the server does not run.
        """
        return self._route(name, version).model

    def metadata(self, name: str, version: str | None = None) -> Metadata:
        """Describes a version or label; the latest ready one by default.

        Raises ModelNotFound or NotReady.
        """
        served = self._repository.find(name)
        deployment = served.route(version)
        model = deployment.model
        return Metadata(
            name=name,
            version=deployment.version,
            versions=tuple(map(str, sorted(served.ready))),
            platform="jax_stablehlo",
            inputs=model.signature.inputs,
            outputs=model.signature.outputs,
            batch_sizes=tuple(model.batch_sizes),
            digest=model.digest,
            provenance=model.manifest.provenance,
        )

    def statistics(self, name: str, version: str | None = None) -> Statistics:
        """Returns counts and times of a version or label.

        Without a version, they are the sums over all versions of the model since the start,
        released ones included. Raises ModelNotFound, or NotReady before the first load.
        """
        return self._repository.find(name).statistics(version)

    async def load(self, name: str) -> None:
        """Loads new and changed versions of a model. Returns when it is ready.

        Failed versions are tried again, and an unloaded model is loaded.

        Raises:
            ModelNotFound: The repository has no such model, or no version of it.
            NotReady: The server is not running.
            Exception: The error of `dovetail_serve.load` for the failed version.
        """
        if not self._repository.accepting:
            raise self._closed()
        await self._repository.load(name)

    async def unload(self, name: str) -> None:
        """Stops taking requests for a model, answers those it has, and releases it.

        It stays unloaded until `load`, even if its directory is away meanwhile. Raises
        ModelNotFound, or NotReady if the server does not run.
        """
        if not self._repository.accepting:
            raise self._closed()
        await self._repository.unload(name)

    def index(self) -> list[VersionState]:
        """Returns the state of every version in the repository."""
        policy = str(self._policy)
        return [state for model in self._repository.models() for state in model.states(policy)]

    def _route(self, name: str, version: str | None) -> Deployment:
        if not self._repository.accepting:
            raise self._closed()
        return self._repository.find(name).route(version)

    def _load_bundle(self, path: Path, loaded: Sequence[Model]) -> Model:
        return load(path, share=loaded, **self._options)

    def _batcher(self, name: str, model: Model, recorder: Recorder) -> Batcher:
        batching = self._batching
        if isinstance(batching, Mapping):
            batching = batching.get(name, Batching())
        return Batcher(model, batching, finite=self._finite, on_batch=recorder.ran)

    def _closed(self) -> NotReady:
        return NotReady(
            f"the server must be running, and is {self._state}; send the request again later"
        )

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Repositories and batchers for tests. Bundles are exported once; loads and batches are held back.

Tests that are coroutine functions run in an event loop of their own.
"""

import asyncio
import contextlib
import errno
import functools
import gc
import inspect
import itertools
import logging
import os
import shutil
import threading
import time

import jax
import numpy as np
import pytest

from dovetail_serve import Batching, HostFunction, Tensor, export, load
from dovetail_serve.serving.batcher import Batcher
from dovetail_serve.serving.repository import Repository
from dovetail_serve.serving.versions import parse_policy
from dovetail_serve.testing import save_mlp

SEEDS = (1, 2)
LIMIT_S = 300.0  # of a test; one that waits for ever fails
WAIT_S = 120.0  # for another thread, which may load and compile on a busy machine


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Runs a coroutine function as a test."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    asyncio.run(asyncio.wait_for(test, LIMIT_S))
    return True


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """Bundles that differ in their weights: a pair of the path and the function for each seed."""
    folder = tmp_path_factory.mktemp("exported")
    paths = {seed: folder / str(seed) for seed in SEEDS}
    return {seed: (path, save_mlp(path, seed=seed)) for seed, path in paths.items()}


@pytest.fixture(scope="session")
def mapped(tmp_path_factory):
    """A bundle whose only weight, the identity, is mapped on CPUs: y = x @ w."""
    path = tmp_path_factory.mktemp("mapped") / "1"
    export(
        lambda params, *, x: {"y": x @ params["w"]},
        {"w": np.eye(128, dtype="float32")},
        inputs={"x": Tensor(("batch", 128), "float32")},
        example={"x": np.random.default_rng(4).normal(size=(3, 128)).astype("float32")},
        platforms=("cpu",),
        batch_sizes=(1, 8),
    ).save(path)
    (path / "weights.safetensors").chmod(0o644)  # weights are read-only
    return path


class Files:
    """A repository on disk."""

    def __init__(self, root, exported):
        self.root, self._exported = root, exported
        self._numbers = itertools.count()
        root.mkdir()

    def put(self, name, version, seed=1, *, damaged=False):
        """Copies a bundle into the repository by a rename, in place of another if one is there.

        `damaged` flips one bit of the last weight.
        """
        target = self.path(name, version)
        partial = target.with_name(f".{version}.{next(self._numbers)}.partial")
        shutil.copytree(self._exported[seed][0], partial)
        if damaged:
            file = partial / "weights.safetensors"
            data = bytearray(file.read_bytes())
            data[-1] ^= 1
            file.chmod(0o644)  # weights are read-only
            file.write_bytes(data)
        if target.exists():
            target.rename(target.with_name(f".{version}.{next(self._numbers)}.old"))
        return partial.rename(target)

    def delete(self, name, version=None):
        """Deletes a version or a model, by a rename."""
        target = self.root / name if version is None else self.path(name, version)
        target.rename(target.with_name(f".{target.name}.{next(self._numbers)}.old"))

    def path(self, name, version):
        return self.root / name / str(version)


@pytest.fixture
def freed():
    """Returns when a weak reference is dead. A worker lets go of its task just after the result."""

    async def wait(reference):
        while gc.collect() >= 0 and reference() is not None:
            await asyncio.sleep(0)

    return wait


@pytest.fixture
def files(tmp_path, exported):
    """An empty repository."""
    return Files(tmp_path / "repo", exported)


@pytest.fixture
def unlisted(monkeypatch):
    """Paths of directories that the system does not list, not even for root."""
    paths, scandir = set(), os.scandir

    def refuse(path):
        if str(path) in paths:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    return paths


class Lines(logging.Handler):
    """Lines of the log, for a test to read and to wait for."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.all = []
        self._waiting = []

    def emit(self, record):
        self.all.append(f"{record.levelname} {record.getMessage()}")
        for part, event in self._waiting:
            if part in self.all[-1]:
                event.set()

    def matching(self, part):
        return [line for line in self.all if part in line]

    async def next(self, part):
        """Waits for a line with `part` from now on."""
        event = asyncio.Event()
        self._waiting.append((part, event))
        await asyncio.wait_for(event.wait(), WAIT_S)


@pytest.fixture
def lines():
    """The lines of this package's log."""
    log, handler = logging.getLogger("dovetail_serve"), Lines()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(level)


class Loads:
    """Loads bundles, notes their paths, and holds them back while the gate is closed."""

    def __init__(self):
        self.paths, self.shared = [], []
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self, path, loaded):
        self.paths.append(f"{path.parent.name}/{path.name}")
        self.shared.append([model.digest for model in loaded])
        self.entered.set()
        assert self.gate.wait(WAIT_S)
        return load(path, map_weights=True)

    @contextlib.asynccontextmanager
    async def held(self):
        """Holds back the next load. Enter it, start the load, then wait for `started`."""
        self.entered.clear()
        self.gate.clear()
        yield functools.partial(asyncio.to_thread, self.entered.wait, WAIT_S)
        self.gate.set()


@pytest.fixture
def loads():
    return Loads()


class Held:
    """Loads bundles; runs of the first one are held back while the gate is closed."""

    def __init__(self):
        self._loaded = False
        self.gate, self.entered = threading.Event(), threading.Event()
        self.gate.set()

    def __call__(self, path, loaded):
        model = load(path, map_weights=True)
        if not self._loaded:
            self._loaded = True
            run = model.execute

            def execute(inputs, rows):
                time.sleep(0.001)  # slow, so that the batcher gives it a thread
                self.entered.set()
                assert self.gate.wait(WAIT_S)
                return run(inputs, rows)

            model.execute = execute
        return model

    async def send(self, batcher, count):
        """Sends requests: one that runs until the gate opens, and others that wait behind it."""
        self.gate.clear()
        self.entered.clear()
        x = np.random.default_rng(2).normal(size=(1, 6)).astype("float32")
        requests = [asyncio.create_task(batcher.infer({"x": x}, 1))]
        assert await asyncio.to_thread(self.entered.wait, WAIT_S)
        return [
            *requests,
            *(asyncio.create_task(batcher.infer({"x": x}, 1)) for _ in range(count - 1)),
        ]


@pytest.fixture
def held():
    return Held()


class Observed(Repository):
    """A repository with short questions about one model."""

    def states(self, name="mlp"):
        return {s.version: s.state for s in self.find(name).states("'latest:1'")}

    def routed(self, version=None, name="mlp"):
        """The version that a request would be answered by."""
        return self.find(name).route(version).version


@pytest.fixture
def make(files):
    """Makes a repository over `files`."""

    def new(*, versions="latest:1", labels=None, poll_s=0.0, loads=None):
        policy = parse_policy(versions, labels)
        return Observed(
            files.root,
            policy=policy,
            load=loads or Loads(),
            batcher=lambda name, model, recorder: Batcher(model, Batching(), on_batch=recorder.ran),
            named={"labels": policy.labels},
            poll_s=poll_s,
        )

    return new


@pytest.fixture
def opened(make):
    """Makes an open repository; leaving the block closes it."""

    @contextlib.asynccontextmanager
    async def open_new(**options):
        repository = make(**options)
        await repository.open()
        yield repository
        await repository.close(30.0)

    return open_new


ROWS = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
KERNEL = np.random.default_rng(1).normal(size=(4, 3)).astype("float32")


@pytest.fixture(scope="session")
def gated_path(tmp_path_factory):
    """A bundle whose host function is `Gate`: y = tanh(x @ KERNEL)."""
    path = tmp_path_factory.mktemp("gated") / "1"
    tensor = Tensor(("batch", 4), "float32")
    export(
        lambda params, *, x: {"y": jax.numpy.tanh(x @ params["w"])},
        {"w": KERNEL},
        inputs={"x": tensor},
        example={"x": ROWS[:3]},
        platforms=("cpu",),
        batch_sizes=(1, 8),
        before=HostFunction("gate", {"x": tensor}),
    ).save(path)
    return path


class Gate:
    """A host function that holds each batch until it is opened, and tells when one has begun."""

    def __init__(self, loop):
        self._loop, self._open = loop, threading.Event()
        self.begun: asyncio.Queue[int] = asyncio.Queue()
        self.batcher = None

    def __call__(self, arrays, assets):
        self._loop.call_soon_threadsafe(self.begun.put_nowait, len(arrays["x"]))
        self._open.wait()
        if np.isposinf(arrays["x"]).any():
            raise SystemExit(3)
        return {"x": arrays["x"]}

    def open(self):
        self._open.set()

    def start(self, first, rows=1, **options):
        """Returns a task for `rows` rows of ROWS from `first` on."""
        x = ROWS[first : first + rows]
        return asyncio.ensure_future(self.batcher.infer({"x": x}, rows, **options))

    def check(self, outputs, first, rows=1):
        expected = np.tanh(ROWS[first : first + rows].astype("float64") @ KERNEL)
        # float32 sums of 4 terms.
        np.testing.assert_allclose(outputs["y"], expected, rtol=1e-5, atol=1e-6)


@pytest.fixture
def gated(gated_path):
    """`async with gated() as (batcher, gate)`: a warm batcher. The gate is opened at the end."""

    @contextlib.asynccontextmanager
    async def make(**options):
        gate = Gate(asyncio.get_running_loop())
        gate.batcher = Batcher(load(gated_path, functions={"gate": gate}), Batching(**options))
        await gate.batcher.warm_up()
        try:
            yield gate.batcher, gate
        finally:
            gate.open()
            await gate.batcher.drain(60.0)

    return make


@pytest.fixture
def passes():
    """Lets every ready task run."""

    async def run():
        for _ in range(3):
            await asyncio.sleep(0)

    return run

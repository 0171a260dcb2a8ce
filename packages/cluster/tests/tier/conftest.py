# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Three hosts with shelves in a folder of the test, and a loop that saves each step on them."""

import os
import pathlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

LIMIT_S = 120.0


@pytest.fixture(scope="module")
def shelves(tmp_path_factory):
    """The folder of all shelves of the module's cluster. It is empty in the end."""
    folder = tmp_path_factory.mktemp("shelves")
    os.environ["DOVETAIL_CLUSTER_SHELF"] = str(folder)
    try:
        yield folder
    finally:
        del os.environ["DOVETAIL_CLUSTER_SHELF"]


@pytest.fixture(scope="module")
def hosts(shelves, module_marked):
    """Three hosts. In the end neither a process nor a shelf is left."""
    from dovetail_cluster import Cluster

    with Cluster.local(hosts=3, devices_per_host=1) as cluster:
        yield cluster
    assert module_marked() == []
    assert list(shelves.iterdir()) == []


def store_maker() -> Any:
    """Returns a function that makes a rank's store. It is pickled by value."""

    def make(ctx, folder, mesh):
        import json
        import os

        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.sharding import NamedSharding, PartitionSpec

        class NpzStore:
            """The newest step in one file, written by rank 0."""

            path = os.path.join(folder, "store")

            def save(self, step, *, metrics, **items):
                whole = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))
                keys = jax.random.key_data(items["state"]["key"])
                values = [np.asarray(whole(items["state"]["w"])), np.asarray(keys)]
                values += [np.asarray(items["state"]["b"], np.float32), items["state"]["count"]]
                texts = [json.dumps(items["data"].get_state()), json.dumps(metrics)]
                if ctx.rank == 0:
                    with open(self.path + ".new", "wb") as file:
                        np.savez(file, *values, *texts, step)
                    os.replace(self.path + ".new", self.path)

            def restore(self, *, state, data):
                if not os.path.exists(self.path):
                    return None
                with np.load(self.path) as file:
                    w, key, b, count, text, _, step = file.values()
                place = lambda x, like: jax.make_array_from_callback(  # noqa: E731
                    x.shape, like.sharding, lambda at: x[at]
                )
                key = jax.random.wrap_key_data(place(key, state["key"]))
                data.set_state(json.loads(str(text)))
                b = place(b.astype(jnp.bfloat16), state["b"])
                tree = {"w": place(w, state["w"]), "b": b, "key": key}
                return int(step), {"state": {**tree, "count": int(count)}, "data": data}

            def peek(self, name):
                if not os.path.exists(self.path):
                    return None
                with np.load(self.path) as file:
                    return int(file["arr_6"]), None

            def wait(self):
                pass

        return NpzStore()

    return make


def state_maker() -> Any:
    """Returns a function that makes a rank's state, its step, and a check. Pickled by value."""

    def make(ctx, mesh):
        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.sharding import NamedSharding, PartitionSpec

        class Data:
            """A position that is the same on all ranks."""

            at = 0

            def get_state(self):
                return {"at": self.at}

            def set_state(self, state):
                self.at = state["at"]

        rows = np.arange(48.0, dtype=np.float32).reshape(12, 4)

        def place(x, *spec):
            sharding = NamedSharding(mesh, PartitionSpec(*spec))
            return jax.make_array_from_callback(x.shape, sharding, lambda at: x[at])

        def expected(step):
            return rows * (step * (step + 1) // 2)

        key = jax.random.wrap_key_data(place(np.array([0, 7], np.uint32)))
        state = {"w": place(0 * rows, "data"), "b": place(np.arange(5, dtype=jnp.bfloat16))}
        state |= {"key": key, "count": 0}
        like = {
            n: x if n == "count" else jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
            for n, x in state.items()
        }
        move = jax.jit(lambda w, r, s: w + r * s, donate_argnums=0)
        on_mesh = place(rows, "data")

        data = Data()

        def check(step, state):
            assert data.at == state["count"] == step
            for shard in state["w"].addressable_shards:
                assert np.array_equal(np.asarray(shard.data), expected(step)[shard.index])
            assert np.array_equal(np.asarray(state["b"]), np.arange(5, dtype=jnp.bfloat16))
            assert state["w"].sharding == like["w"].sharding
            assert [*np.asarray(jax.random.key_data(state["key"]))] == [0, 7]

        return data, state, like, lambda w, step: move(w, on_mesh, np.float32(step)), check

    return make


def program(folder: str, **options: Any) -> Any:
    """A loop that saves each step, waits at some, and checks all that it restores."""
    make_store, make_state = store_maker(), state_maker()

    def train(ctx):
        import json
        import os
        import time

        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.sharding import NamedSharding, PartitionSpec

        from dovetail_cluster import LocalTier
        from dovetail_cluster.tier.agree import gather

        mesh = ctx.mesh(data=-1)

        def log(*words):
            with open(os.path.join(folder, "log"), "a") as file:
                file.write(" ".join(map(str, (ctx.generation, ctx.rank, ctx.hosts, *words))) + "\n")

        store, step = make_store(ctx, folder, mesh), 0
        data, state, like, move, check = make_state(ctx, mesh)
        with LocalTier(ctx, store, store_every=5, **options) as tier:
            newest = tier.peek("data")
            restored = tier.restore(state=like, data=data)
            if restored is not None:
                step, items = restored
                assert newest[0] == step
                state = items["state"]
                check(step, state)
            log("restored", step, ctx._home.shelf)
            more = os.path.join(folder, "more")
            while step < 14 or gather(os.path.exists(more))[0]:
                step += 1
                state["w"] = move(state["w"], step)
                state["count"] = data.at = step
                tier.save(step, metrics={"step": float(step)}, state=state, data=data)
                ctx.progress.write(step)
                log("saved", step)
                while os.path.exists(os.path.join(folder, f"pause{step}")):
                    time.sleep(0.02)
                if ctx.stop(step):
                    break
            advice = tier.advice()
            assert 0 < advice.save_s < advice.failure_s
            total = jax.jit(jnp.sum, out_shardings=NamedSharding(mesh, PartitionSpec()))(state["w"])
        if ctx.rank > 0:
            return step, float(total)
        with np.load(store.path) as file:
            return step, float(total), int(file["arr_6"]), json.loads(str(file["arr_5"]))

    return train


class Run:
    """A run of the program that stops at some steps for the test to injure its hosts."""

    def __init__(self, cluster: Any, shelves: pathlib.Path, folder: pathlib.Path) -> None:
        self.cluster, self.folder, self._shelves = cluster, folder, shelves
        self.outcome: Any = None
        self.thread: threading.Thread | None = None

    def start(self, *pauses: int, tier: Any = None, **elastic: Any) -> None:
        """Runs the program in a thread. It waits at the steps `pauses` for `go`."""
        from dovetail_cluster import Elastic

        for step in pauses:
            (self.folder / f"pause{step}").touch()
        function = program(str(self.folder), **(tier or {}))

        def call() -> None:
            try:
                self.outcome = self.cluster.run(function, elastic=Elastic(**elastic))
            except BaseException as error:
                self.outcome = error

        self.thread = threading.Thread(target=call)
        self.thread.start()

    def until(self, condition: Any) -> Any:
        """Waits for a true result, which it returns."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            if result := condition():
                return result
            assert self.thread is not None
            assert self.thread.is_alive(), self.outcome
            time.sleep(0.02)
        raise AssertionError(f"not within {LIMIT_S} s: {self.log()[-9:]}")

    def log(self) -> list[list[str]]:
        """Lines so far: generation, rank, hosts, and words."""
        file = self.folder / "log"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def go(self, step: int) -> None:
        """Ends the wait at a step."""
        (self.folder / f"pause{step}").unlink()

    def restored(self, generation: int) -> set[int]:
        """Waits for all ranks of a generation to restore. Returns their steps."""

        def lines() -> list[list[str]]:
            found = [x for x in self.log() if x[0] == str(generation) and x[3] == "restored"]
            return found if found and len(found) == int(found[0][2]) else []

        return {int(line[4]) for line in self.until(lines)}

    def shelves(self, generation: int) -> dict[str, str]:
        """The shelf of each rank of a generation."""
        lines = [line for line in self.log() if line[0] == str(generation)]
        return {line[1]: line[5] for line in lines if line[3] == "restored"}

    def end(self) -> Any:
        """Waits for the end of the run. Returns its result, or raises its error."""
        assert self.thread is not None
        self.thread.join(LIMIT_S)
        assert not self.thread.is_alive()
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def files(self, step: int, generation: int) -> list[pathlib.Path]:
        """The whole files of a step on all shelves."""
        from dovetail_cluster.tier.files import parse

        # Not by glob, which raises if a folder of an earlier run is deleted meanwhile.
        walked = os.walk(self._shelves)
        named = [(pathlib.Path(folder, x), parse(x)) for folder, _, names in walked for x in names]
        return sorted(path for path, name in named if name and name[:2] == (step, generation))


@pytest.fixture
def run(hosts: Any, shelves: pathlib.Path, tmp_path: pathlib.Path) -> Iterator["Run"]:
    """A run that the test starts and injures. It ends with the test."""
    run = Run(hosts, shelves, tmp_path)
    yield run
    for path in [*tmp_path.glob("pause*"), *tmp_path.glob("more")]:
        path.unlink()
    if run.thread is not None:
        run.thread.join(LIMIT_S)

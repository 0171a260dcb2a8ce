# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Save and restore of model and Adam state against Orbax v1, torch's DCP and safetensors.

Ours writes the same arrays through Orbax, and adds digests, a manifest and (apart) checksums. Orbax
runs uncompressed, as ours does, and as it comes. DCP and safetensors hold the same float32 values
as tensors and NumPy arrays; DCP without fsync, which none of the others calls. All restores are
from the page cache into arrays of the caller's kind; ours alone proves them. The limit is the disk,
or with a warm cache the copies.
"""

import importlib.util
import itertools
import logging
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp
import safetensors.numpy

from dovetail_checkpoint import Retention, Store
from measure import Cost, cost, report, rounds


class Save(NamedTuple):
    """Seconds until save returned and until all was written; and of all threads."""

    blocked_s: float
    wall_s: float
    cpu_s: float


def adam_state(width: int, layers: int, vocabulary: int) -> dict:
    """Random float32 parameters of a decoder, with two moments each."""
    shapes = {"embed": (vocabulary, width), "head": (width, vocabulary)}
    for i in range(layers):
        for name, n in (("q", 1), ("k", 1), ("v", 1), ("o", 1), ("up", 3), ("gate", 3)):
            shapes[f"{i}.{name}"] = (width, n * width)
        shapes[f"{i}.down"] = (3 * width, width)
        shapes[f"{i}.norm"] = (width,)
    rng = np.random.default_rng(0)

    def tree():
        return {n: jnp.asarray(rng.normal(size=s), jnp.float32) for n, s in shapes.items()}

    return {"params": tree(), "train": {"mu": tree(), "nu": tree(), "step": jnp.int32(1)}}


class Arm:
    """Steps of one library under `root`; all but the newest are deleted, between measurements."""

    def __init__(self, root: Path, state: dict) -> None:
        root.mkdir()
        self.root, self.state = root, state
        self._steps = itertools.count()
        self.target = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
        )

    def measure_save(self) -> Save:
        step = next(self._steps)
        start, cpu = time.perf_counter(), time.process_time()
        wait = self.begin(self.root / str(step))
        blocked_s = time.perf_counter() - start
        wait()
        wall_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
        if step:
            shutil.rmtree(self.root / str(step - 1))
        return Save(blocked_s, wall_s, cpu_s)

    def measure_restore(self) -> Cost:
        steps = (path for path in self.root.iterdir() if path.name.isdigit())
        newest = max(steps, key=lambda path: int(path.name))
        return cost(lambda: self.restore(newest))


class Ours(Arm):
    """Store, with or without checksums."""

    def __init__(self, root: Path, state: dict, *, checksums: bool) -> None:
        super().__init__(root, state)
        self._store = Store(root, checksums=checksums, retention=Retention(latest=1000))

    def begin(self, step: Path):
        self._store.save(int(step.name), **self.state)
        return self._store.wait

    def restore(self, step: Path):
        return jax.block_until_ready(self._store.restore(step=int(step.name), **self.target)[1])


class Orbax(Arm):
    """The free functions of Orbax v1."""

    def __init__(self, root: Path, state: dict, *, compress: bool) -> None:
        super().__init__(root, state)
        self._context = ocp.Context()
        self._context.array.saving.use_compression = compress

    def begin(self, step: Path):
        with self._context:
            return ocp.save_checkpointables_async(str(step), self.state).result

    def restore(self, step: Path):
        return jax.block_until_ready(ocp.load_checkpointables(str(step), self.target))


class Safetensors(Arm):
    """One file of NumPy arrays; they are views of the JAX arrays, and return as such."""

    def begin(self, step: Path):
        step.mkdir()
        arrays = {name: np.asarray(x) for name, x in flat(self.state).items()}
        safetensors.numpy.save_file(arrays, step / "state.safetensors")
        return lambda: None

    def restore(self, step: Path):
        arrays = safetensors.numpy.load_file(step / "state.safetensors")
        return jax.block_until_ready(jax.device_put(arrays))


class Dcp(Arm):
    """torch.distributed.checkpoint in one process."""

    def __init__(self, root: Path, state: dict) -> None:
        super().__init__(root, state)
        import torch

        self._tensors = {n: torch.from_numpy(np.array(x)) for n, x in flat(state).items()}

    def begin(self, step: Path):
        import torch.distributed.checkpoint as dcp

        writer = dcp.FileSystemWriter(step, sync_files=False, thread_count=2)
        dcp.save(self._tensors, storage_writer=writer, no_dist=True)
        return lambda: None

    def restore(self, step: Path):
        import torch
        import torch.distributed.checkpoint as dcp

        found = {name: torch.empty_like(x) for name, x in self._tensors.items()}
        dcp.load(found, storage_reader=dcp.FileSystemReader(step), no_dist=True)
        return found


def flat(state: dict) -> dict[str, jax.Array]:
    paths = jax.tree_util.tree_flatten_with_path(state)[0]
    return {jax.tree_util.keystr(path): leaf for path, leaf in paths}


PEERS = {
    "plain": ("orbax-checkpoint", "uncompressed"),
    "default": ("orbax-checkpoint", "as it comes"),
    "dcp": ("torch", "DCP"),
    "safetensors": ("safetensors", "numpy"),
}


def compare(case: str, state: dict, root: Path, *, repeats: int) -> None:
    arms = {
        "ours": Ours(root / "ours", state, checksums=True),
        "unchecked": Ours(root / "unchecked", state, checksums=False),
        "plain": Orbax(root / "plain", state, compress=False),
        "default": Orbax(root / "default", state, compress=True),
        "safetensors": Safetensors(root / "safetensors", state),
    }
    if importlib.util.find_spec("torch"):
        arms["dcp"] = Dcp(root / "dcp", state)
    first_s = {name: arm.measure_save().wall_s for name, arm in arms.items()}["ours"]
    assert restores_are_equal(arms, state)
    arms["plain again"] = arms["plain"]
    saves = rounds({n: a.measure_save for n, a in arms.items()}, repeats=repeats)
    restores = rounds(
        {n: a.measure_restore for n, a in arms.items() if n not in ("unchecked", "default")},
        repeats=repeats,
    )
    line(f"{case}: save until it returns", "blocked_s", saves, "ours", "plain", first_s)
    line(f"{case}: save with checksums", "wall_s", saves, "ours", "plain", first_s)
    for peer in [peer for peer in PEERS if peer in arms]:
        for metric in ("wall_s", "cpu_s"):
            line(f"{case}: save until durable", metric, saves, "unchecked", peer, first_s)
            if peer in restores:
                line(f"{case}: verified restore", metric, restores, "ours", peer, first_s)


def restores_are_equal(arms: dict[str, Arm], state: dict) -> bool:
    want = list(map(np.asarray, jax.tree.leaves(state)))
    return all(
        np.array_equal(x, y)
        for arm in arms.values()
        for x, y in zip(jax.tree.leaves(arm.restore(arm.root / "0")), want, strict=True)
    )


def line(case: str, metric: str, found: dict, own: str, peer: str, first_s: float) -> None:
    seconds = {name: [getattr(one, metric) for one in all_] for name, all_ in found.items()}
    distribution, settings = PEERS[peer]
    report(
        case,
        metric=metric,
        unit="s",
        values=seconds[own],
        peer=distribution,
        peer_values=seconds[peer],
        peer_again=seconds.get(f"{peer} again"),
        peer_settings=settings,
        first_save_s=first_s,
        limit="the disk",
    )


def main() -> None:
    logging.disable(logging.WARNING)
    for case, width, layers, vocabulary, repeats in (
        ("0.06 GB", 256, 6, 2048, 9),
        ("1.07 GB", 704, 12, 8192, 5),
    ):
        with tempfile.TemporaryDirectory() as root:
            state = adam_state(width, layers, vocabulary)
            compare(case, state, Path(root), repeats=repeats)


if __name__ == "__main__":
    main()

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Save and restore of model and Adam state against Orbax v1: its default, and uncompressed.

Ours writes the same arrays through Orbax, and adds digests, a record and (apart) the seal.
Restores read from the page cache. Wall and CPU seconds; the limit is the disk, or with a warm
cache the copies.
"""

import itertools
import logging
import shutil
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint.experimental.v1 as ocp

from dovetail_checkpoint import Store
from measure import Cost, cost, report, rounds

REPEATS = 9


def adam_state(width: int, layers: int, vocabulary: int) -> dict:
    """Random float32 parameters of a decoder, with two moments each."""
    shapes = {"embed": (vocabulary, width), "head": (width, vocabulary)}
    for i in range(layers):
        for name, n in (("q", 1), ("k", 1), ("v", 1), ("o", 1), ("up", 3), ("gate", 3)):
            shapes[f"{i}/{name}"] = (width, n * width)
        shapes[f"{i}/down"] = (3 * width, width)
        shapes[f"{i}/norm"] = (width,)
    rng = np.random.default_rng(0)

    def tree():
        return {n: jnp.asarray(rng.normal(size=s), jnp.float32) for n, s in shapes.items()}

    return {"params": tree(), "train": {"mu": tree(), "nu": tree(), "step": jnp.int32(1)}}


class Ours:
    """Store, with or without the seal."""

    def __init__(self, root: Path, *, seal: bool) -> None:
        self._store = Store(root, seal=seal)
        self._steps = itertools.count()

    def save(self, state: dict) -> tuple[float, float]:
        """Seconds until save returned and until the step was durable."""
        start = time.perf_counter()
        self._store.save(next(self._steps), **state)
        blocked = time.perf_counter() - start
        self._store.wait()
        return blocked, time.perf_counter() - start

    def restore(self, target: dict) -> dict:
        return jax.block_until_ready(self._store.restore(**target)[1])


class Peer:
    """The free functions of Orbax v1."""

    def __init__(self, root: Path, *, compress: bool) -> None:
        self._root = root
        self._steps = itertools.count()
        self._context = ocp.Context()
        self._context.array.saving.use_compression = compress

    def save(self, state: dict) -> tuple[float, float]:
        step = next(self._steps)
        start = time.perf_counter()
        with self._context:
            response = ocp.save_checkpointables_async(str(self._root / str(step)), state)
        blocked = time.perf_counter() - start
        response.result()
        total = time.perf_counter() - start
        if step > 0:
            shutil.rmtree(self._root / str(step - 1))
        return blocked, total

    def restore(self, target: dict) -> dict:
        newest = max(self._root.iterdir(), key=lambda path: int(path.name))
        return jax.block_until_ready(ocp.load_checkpointables(str(newest), target))


def compare(case: str, state: dict, root: Path) -> None:
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )
    ours, unsealed = Ours(root / "ours", seal=True), Ours(root / "unsealed", seal=False)
    plain = Peer(root / "plain", compress=False)
    default = Peer(root / "default", compress=True)
    first_s = ours.save(state)[1]
    unsealed.save(state), plain.save(state), default.save(state)
    found, want = ours.restore(target), plain.restore(target)
    assert jax.tree.all(jax.tree.map(np.array_equal, found, want))
    stores = {"ours": ours, "unsealed": unsealed, "plain": plain, "default": default}
    stores |= {"plain again": plain, "default again": default}
    saves = rounds({n: (lambda s=s: s.save(state)) for n, s in stores.items()}, repeats=REPEATS)
    restores = rounds(
        {
            name: (lambda s=stores[name]: cost(lambda: s.restore(target)))
            for name in ("ours", "plain", "plain again")
        },
        repeats=REPEATS,
    )
    blocked = {name: [seconds for seconds, _ in found] for name, found in saves.items()}
    durable = {name: [seconds for _, seconds in found] for name, found in saves.items()}
    for what, seconds, own, peer in (
        ("save until it returns", blocked, "ours", "plain"),
        ("save until durable", durable, "unsealed", "plain"),
        ("save until sealed", durable, "ours", "plain"),
        ("save until durable", durable, "unsealed", "default"),
    ):
        line(f"{case}: {what}", "wall_s", seconds, ours=own, peer=peer, first_save_s=first_s)
    for metric in Cost._fields:
        seconds = {name: [getattr(c, metric) for c in found] for name, found in restores.items()}
        line(f"{case}: verified restore", metric, seconds, ours="ours", peer="plain")


def line(
    case: str, metric: str, seconds: dict[str, list[float]], *, ours: str, peer: str, **more: float
) -> None:
    report(
        case,
        metric=metric,
        unit="s",
        values=seconds[ours],
        peer="orbax-checkpoint",
        peer_values=seconds[peer],
        peer_again=seconds[f"{peer} again"],
        peer_compression=peer == "default",
        limit="the disk",
        **more,
    )


def main() -> None:
    logging.disable(logging.WARNING)
    for case, width, layers, vocabulary in (
        ("5 M parameters and Adam", 256, 6, 2048),
        ("46 M parameters and Adam", 512, 12, 8192),
    ):
        with tempfile.TemporaryDirectory() as root:
            compare(case, adam_state(width, layers, vocabulary), Path(root))


if __name__ == "__main__":
    main()

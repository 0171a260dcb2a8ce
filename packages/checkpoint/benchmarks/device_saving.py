# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""State that lies on this device: saved, restored and proven, beside Orbax; and its digest.

A verified restore reads what the page cache holds, moves it to the device, and compares digests
there. The restored arrays are compared with the saved ones to the bit before a figure is printed.
"""

import functools
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint.experimental.v1 as ocp

from device_timing import Contest, normals
from dovetail_checkpoint import Retention, Store, digest
from measure import Cost, cost, report, rounds


class Ours:
    """Saves and restores with a Store, digests and checksums on."""

    def __init__(self, root: Path) -> None:
        self._store = Store(root, retention=Retention(latest=1000))

    def save(self, step: int, state: Any) -> None:
        self._store.save(step, model=state)
        self._store.wait()

    def restore(self, step: int, target: Any) -> Any:
        found = self._store.restore(step=step, model=target)
        assert found is not None
        return found[1]["model"]


class Orbax:
    """The same with Orbax's free functions, uncompressed as ours."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self._root, self._context = root, ocp.Context()
        self._context.array.saving.use_compression = False

    def save(self, step: int, state: Any) -> None:
        with self._context:
            ocp.save_checkpointables(self._root / str(step), {"model": state})

    def restore(self, step: int, target: Any) -> Any:
        return ocp.load_checkpointables(self._root / str(step), {"model": target})["model"]


def state(leaves: int, leaf_bytes: int) -> dict[str, jax.Array]:
    """Normal float32 arrays of 4096 columns or fewer."""
    columns = min(4096, leaf_bytes // 8)
    shape = (leaf_bytes // 4 // columns, columns)
    return {f"w{i}": x for i, x in enumerate(normals(0, *[shape] * leaves, dtype="float32"))}


def save_restore(leaves: int, leaf_bytes: int, repeats: int) -> None:
    """Prints GB/s of a save until it is durable, and of a restore into device arrays."""
    held = jax.block_until_ready(state(leaves, leaf_bytes))
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), held
    )
    gb = sum(x.nbytes for x in held.values()) / 1e9
    with tempfile.TemporaryDirectory() as folder:
        arms = {"ours": Ours(Path(folder) / "ours"), "orbax": Orbax(Path(folder) / "orbax")}
        arms["again"] = arms["orbax"]
        steps = itertools.count()

        def turn(name: str) -> tuple[Cost, Cost]:
            """A save and a restore of it, which is compared, and both steps' folder emptied."""
            step, found = next(steps), []
            saved = cost(lambda: arms[name].save(step, held))
            restored = cost(
                lambda: found.append(jax.block_until_ready(arms[name].restore(step, target)))
            )
            if not all(bool(jnp.array_equal(found[0][key], held[key])) for key in held):
                raise RuntimeError(f"{name} did not restore what it saved")
            for path in Path(folder).glob(f"*/{step}"):
                shutil.rmtree(path)
            return saved, restored

        results = rounds({name: functools.partial(turn, name) for name in arms}, repeats=repeats)
    for i, what in enumerate(("save", "verified restore")):
        rate = {name: [gb / pair[i].wall_s for pair in pairs] for name, pairs in results.items()}
        report(
            f"{what}, {leaves} leaves of {leaf_bytes} bytes",
            metric="gb_per_s",
            unit="GB/s",
            values=rate["ours"],
            peer="orbax-checkpoint",
            peer_values=rate["orbax"],
            peer_again=rate["again"],
        )


def digests(leaves: int, leaf_bytes: int, chain: int) -> Iterator[Contest]:
    """The digest of arrays where they lie; its limit is one read."""
    made: Callable[[], Any] = functools.partial(state, leaves, leaf_bytes)
    yield Contest(
        case=f"digest of {leaves} leaves of {leaf_bytes} bytes",
        ours=digest,
        inputs=lambda: (made(),),
        chain=chain,
        nbytes=float(leaves * leaf_bytes),
    )

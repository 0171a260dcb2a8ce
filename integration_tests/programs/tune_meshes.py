# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes one step of each loss of tune_losses.py by mesh.

    tune_meshes.py FILE LOSSES MESHES               # on one device, and on eight
    tune_meshes.py FILE LOSSES ID COUNT PORT        # as one of several processes, with its own rows

LOSSES and MESHES are separated by commas. FILE is an npz of arrays "LOSS MESH:TERM": the terms and
norms of the step, and the change of all trained parameters, which is the gradient: the rate is 1.
"""

import sys
from typing import Any

import jax
import numpy as np
import optax
from tune_losses import LOSSES, ROWS, Case, batch

import forced_devices
from dovetail_train import Trainer, make_mesh

MESHES = {
    "data": {"data": 8, "fsdp": 1},
    "fsdp": {"fsdp": 8},
    "fsdp x tensor": {"fsdp": 4, "tensor": 2},
}


def step(
    case: Case, mesh: Any, rows: dict[str, Any], *, accumulate: int = 1, chunks: int = 1
) -> dict[str, Any]:
    loss = case.loss(chunks=chunks) if case.whole else case.loss()
    trainer = Trainer(
        optax.sgd(1.0), loss, mesh=mesh, trainable=case.trainable, accumulate=accumulate
    )
    state = trainer.init(case.model(mesh))
    before = flat(state.params)
    state, metrics = trainer.step(state, rows)
    return metrics.read() | {"change": before - flat(state.params)}


def flat(params: Any) -> np.ndarray:
    """All parameters in one vector, also those that lie on other processes."""
    if jax.process_count() > 1:
        whole = jax.sharding.PartitionSpec()
        params = jax.tree.map(
            lambda x: jax.jit(
                lambda y: y, out_shardings=jax.sharding.NamedSharding(x.sharding.mesh, whole)
            )(x),
            params,
        )
    leaves = jax.tree.leaves(params)
    return np.concatenate([np.asarray(x, np.float64).ravel() for x in leaves])


def of_one_host(names: list[str], meshes: list[str]) -> dict[str, dict[str, Any]]:
    steps, one = {}, make_mesh(devices=jax.devices()[:1])
    for name in names:
        how = "chunks" if LOSSES[name].whole else "accumulate"
        for n in (1, 2, 4):
            steps[f"{name} one/{n}"] = step(LOSSES[name], one, batch(), **{how: n})
    forced_devices.stop_caching()
    for name in names:
        for mesh in meshes:
            steps[f"{name} {mesh}"] = step(LOSSES[name], make_mesh(**MESHES[mesh]), batch())
    return steps


def of_processes(names: list[str], me: int, count: int, port: int) -> dict[str, dict[str, Any]]:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=count, process_id=me)
    mesh, each = make_mesh(data=2, fsdp=2), ROWS // count
    own = {name: x[me * each : (me + 1) * each] for name, x in batch().items()}
    return {f"{name} processes": step(LOSSES[name], mesh, own) for name in names}


if __name__ == "__main__":
    file, losses, *rest = sys.argv[1:]
    names = losses.split(",")
    several = len(rest) > 1
    if several:
        steps = of_processes(names, *map(int, rest))
    else:
        steps = of_one_host(names, rest[0].split(","))
    if not several or rest[0] == "0":
        np.savez(
            file, **{f"{at}:{term}": x for at, terms in steps.items() for term, x in terms.items()}
        )

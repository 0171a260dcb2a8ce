# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A short computation on the devices of one process, to compare them with those of the others.

The time of a step says nothing about one process, since all wait for each other in it. No process
waits for another one in this.
"""

import time
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dovetail_train.mesh.mesh import ambient

# A round is 1 GFLOP, about 15 ms of a CPU core: large enough for its threads and for a GPU, and one
# round of a while loop costs a GPU 20 us. A device needs 3 MB.
_WIDTH, _PRODUCTS = 512, 4
_LEAST_S = 0.01  # of all rounds: a hundred times the dispatch


class Probe:
    """Products of float32 matrices, on all devices of this process at once.

    Args:
        devices: Devices of this process, in any order.
    """

    def __init__(self, devices: Iterable[Any]) -> None:
        some = np.array(sorted(devices, key=lambda device: device.id))
        local = Mesh(some, ("device",), axis_types=(AxisType.Auto,))
        own, same = PartitionSpec("device"), PartitionSpec()
        # A reflection: products of it stay finite. Zeros would need less power than a step does.
        normal = np.random.default_rng(0).normal(size=(_WIDTH, 1))
        matrix = np.eye(_WIDTH) - 2 * normal @ normal.T / (normal.T @ normal)
        matrix = matrix.astype(np.float32)
        with jax.transfer_guard("allow"), ambient(local):
            self._run = jax.jit(
                jax.shard_map(_rounds, mesh=local, in_specs=(own, same, same), out_specs=own)
            )
            self._rows = jax.device_put(np.tile(matrix, (local.size, 1)), NamedSharding(local, own))
            self._matrix = jax.device_put(matrix, NamedSharding(local, same))
        self._mesh = local
        self.seconds(1)  # compiles

    def rounds(self) -> int:
        """Returns a number of rounds that takes 10 to 20 ms here, or 1."""
        rounds = 1
        while min(self.seconds(rounds) for _ in range(3)) < _LEAST_S:
            rounds *= 2
        return rounds

    def seconds(self, rounds: int) -> float:
        """Returns the wall time of `rounds` rounds on the slowest device."""
        with jax.transfer_guard("allow"), ambient(self._mesh):
            begin_s = time.perf_counter()
            self._run(self._rows, self._matrix, np.int32(rounds)).block_until_ready()
            return time.perf_counter() - begin_s


def _rounds(rows: jax.Array, matrix: jax.Array, rounds: jax.Array) -> jax.Array:
    def multiply(_round: jax.Array, rows: jax.Array) -> jax.Array:
        for _product in range(_PRODUCTS):
            rows = rows @ matrix
        return rows

    return jax.lax.fori_loop(0, rounds, multiply, rows)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Saves on a 2x2 mesh and restores on 2x2, 4, 8 and 1 devices; digests must not differ either."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dovetail_checkpoint import Store, digest

SPECS = {"w": PartitionSpec("a", "b"), "v": PartitionSpec(("a", "b")), "r": PartitionSpec()}


def mesh(rows: int, columns: int) -> Mesh:
    devices = np.array(jax.devices()[: rows * columns]).reshape(rows, columns)
    return Mesh(devices, ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def main(root: str) -> None:
    rng = np.random.default_rng(0)
    # "w" is large enough for the digest to stay on the devices.
    values = {
        "w": rng.normal(size=(2048, 1032)).astype(np.float32),
        "v": rng.normal(size=(24,)).astype(jnp.bfloat16),
        "r": rng.integers(-8, 8, (3, 5)).astype(jnp.int4),
    }
    places = {n: NamedSharding(mesh(2, 2), spec) for n, spec in SPECS.items()}
    saved = {name: jax.device_put(value, places[name]) for name, value in values.items()}
    with Store(root) as store:
        store.save(1, item=saved)
    for name, (rows, columns) in {"2x2": (2, 2), "4": (1, 4), "8": (4, 2), "1": (1, 1)}.items():
        on = mesh(rows, columns)
        target = {
            n: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(on, SPECS[n]))
            for n, x in saved.items()
        }
        found = Store(root).restore(item=target)[1]["item"]
        for key, value in values.items():
            assert found[key].sharding == target[key].sharding, key
            assert np.asarray(found[key]).tobytes() == value.tobytes(), key
        want, have = digest(values), digest(found)
        assert all(np.array_equal(want[key], have[key]) for key in values)
        print(name, "verified")


main(sys.argv[1])

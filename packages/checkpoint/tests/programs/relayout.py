# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Saves layers on one device, loads them stacked on a mesh, and takes them apart on another."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dovetail_checkpoint import Store, load, stack, transpose, unstack
from dovetail_checkpoint.layout import placing

LAYERS = 5


def target(shape: tuple[int, ...], *spec, rows: int, axis_type=AxisType.Auto):
    mesh = Mesh(np.array(jax.devices()).reshape(rows, -1), ("a", "b"), axis_types=(axis_type,) * 2)
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)


def assert_is(found: jax.Array, want: np.ndarray, wanted: jax.ShapeDtypeStruct) -> None:
    assert found.sharding == wanted.sharding, found.sharding
    assert np.asarray(found).tobytes() == want.tobytes()


def main(root: Path) -> None:
    rng = np.random.default_rng(0)
    values = [rng.normal(size=(8, 12)).astype(np.float32) for _ in range(LAYERS)]
    bias = rng.normal(size=(6,)).astype(np.float32)
    with Store(root) as store:
        store.save(1, item={"w": list(map(jnp.asarray, values)), "b": jnp.asarray(bias)})

    rules = [stack("w/#", "w"), transpose("w", (0, 2, 1))]
    want = np.ascontiguousarray(np.stack(values).transpose(0, 2, 1))
    wanted = {
        "w": target(want.shape, None, "a", ("b",), rows=4),
        "b": target(bias.shape, "b", rows=4),
    }
    found = load(root / "1", wanted, rules=rules)
    assert_is(found["w"], want, wanted["w"])
    assert_is(found["b"], bias, wanted["b"])
    print("stacked and turned, on 4x2 devices")

    explicit = {
        "w": target(want.shape, None, "a", "b", rows=4, axis_type=AxisType.Explicit),
        "b": target(bias.shape, rows=4, axis_type=AxisType.Explicit),
    }
    assert_is(load(root / "1", explicit, rules=rules)["w"], want, explicit["w"])
    print("on explicit axes")
    # Auto and explicit meshes compute in the same place: one program each for the two loads.
    assert placing._update._cache_size() == 1
    print("in one program for all layers")

    with Store(root) as store:
        store.save(2, item=found)
    apart = {
        "w": [target((12, 8), None, "b", rows=1) for _ in range(LAYERS)],
        "b": target(bias.shape, rows=1),
    }
    back = load(root / "2", apart, rules=[unstack("w", "w/#")])
    for have, value, place in zip(back["w"], values, apart["w"], strict=True):
        assert_is(have, np.ascontiguousarray(value.T), place)
    print("unstacked, on 1x8 devices")


main(Path(sys.argv[1]))

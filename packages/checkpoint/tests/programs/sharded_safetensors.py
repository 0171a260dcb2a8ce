# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Reads safetensors to shardings on four devices, and counts the bytes that are read."""

import os
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from safetensors.numpy import save_file

from dovetail_checkpoint.layout.tensor_reader import TensorReader

read_bytes = 0


def counted(preadv=os.preadv):
    def call(file, buffers, offset):
        global read_bytes
        count = preadv(file, buffers, offset)
        read_bytes += count
        return count

    return call


def main(directory: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "a.w": rng.normal(size=(12, 20, 3)).astype(np.float32),
        "a.b": rng.normal(size=(8, 6)).astype(jnp.bfloat16),
        "s": np.array(7, np.int32),
        "m": rng.integers(0, 2, 5) > 0,
        "q": rng.normal(size=(4, 4)).astype(jnp.float8_e4m3fn),
        "i": np.array([2**40 + 1, 5]),
    }
    save_file(arrays, directory / "x.safetensors")
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    specs = {
        "a.w": PartitionSpec(("x", "y")),
        "a.b": PartitionSpec("y", "x"),
        "s": PartitionSpec(),
        "m": PartitionSpec(),
        "q": PartitionSpec(None, "x"),
    }
    places = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    reader = TensorReader(directory / "x.safetensors")
    os.preadv = counted()
    found = reader.read(places)
    for name, value in found.items():
        want = arrays[name]
        assert value.sharding == places[name]
        assert (value.dtype, value.shape) == (want.dtype, want.shape)
        assert np.asarray(value).tobytes() == want.tobytes()
        for shard in value.addressable_shards:
            assert np.asarray(shard.data).tobytes() == want[shard.index].tobytes()
    print("whole", read_bytes - sum(x.nbytes for n, x in arrays.items() if n in ("a.w", "s", "m")))

    one_device = jax.sharding.SingleDeviceSharding(jax.devices()[3])
    before = int(read_bytes)
    only = NamedSharding(jax.make_mesh((1,), ("x",), devices=jax.devices()[2:3]), PartitionSpec())
    reader.read({"a.b": only, "s": one_device})
    print("named", read_bytes - before)
    try:
        reader.read({"i": one_device})
    except ValueError as error:
        print(error)
    print(reader.read({"i": None})["i"].tolist())


main(Path(sys.argv[1]))

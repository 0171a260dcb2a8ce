# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The bytes that one step of sharded Muon brings to a device, read off the compiled program.

48 matrices in three stacks, sharded over eight devices that the host is made to have. Every
collective counts the bytes of its result, as often as the loop that it stands in runs. The peer is
`optax.contrib.muon` on an Auto mesh: on an Explicit one it raises where a matrix is sharded.
"""

import os

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"  # before JAX looks

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from dovetail_optim import muon
from measure import report

SHAPES = {"qo": (16, 256, 256), "up": (16, 256, 1024), "down": (16, 1024, 256)}
MESHES = {
    "rows over 8": ((8,), ("fsdp",), PartitionSpec(None, "fsdp")),
    "rows over 2, columns over 4": (
        (2, 4),
        ("fsdp", "tensor"),
        PartitionSpec(None, *("fsdp", "tensor")),
    ),
}
COLLECTIVE = re.compile(
    r"= (.*) (?:all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
SIZES = {"f32": 4, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "pred": 1}


def compiled(tx: optax.GradientTransformation, mesh: Any, spec: PartitionSpec) -> str:
    """The program of one update, whose parameters and momenta are sharded."""
    sharding = NamedSharding(mesh, spec)
    arrays = {
        name: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)
        for name, shape in SHAPES.items()
    }

    def place(leaf: Any) -> Any:
        alike = leaf.shape in SHAPES.values()
        at = sharding if alike else NamedSharding(mesh, PartitionSpec())
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at)

    with jax.sharding.set_mesh(mesh):
        state = jax.tree.map(place, jax.eval_shape(tx.init, arrays))
        return jax.jit(tx.update).lower(arrays, state, arrays).compile().as_text()


def received(text: str) -> Iterator[int]:
    """The bytes of each collective's result, over all turns of its loop."""
    bodies = dict(re.findall(r"body=%?([\w.-]+).*?\"known_trip_count\":{\"n\":\"(\d+)\"}", text))
    turns = 1
    for line in text.splitlines():
        head = re.match(r"%?([\w.-]+) .*{$", line)
        if head:
            turns = int(bodies.get(head[1], 1))
        found = COLLECTIVE.search(line)
        for kind, shape in re.findall(r"(\w+)\[([\d,]*)\]", found[1]) if found else ():
            yield turns * SIZES[kind] * math.prod(map(int, filter(None, shape.split(","))))


def candidates(mesh_of: Callable[[AxisType], Any], spec: PartitionSpec) -> dict[str, str]:
    stacked, auto = "l i o -> l, i, o", mesh_of(AxisType.Auto)
    known = dict.fromkeys(SHAPES, NamedSharding(auto, spec))
    numbers = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)
    theirs = optax.contrib.muon(0.02, muon_weight_dimension_numbers=dict.fromkeys(SHAPES, numbers))
    explicit = mesh_of(AxisType.Explicit)
    return {
        "optax": compiled(theirs, auto, spec),
        "Explicit mesh": compiled(muon(0.02, matrix=stacked), explicit, spec),
        "Auto mesh, shardings given": compiled(
            muon(0.02, matrix=stacked, exchange=known), auto, spec
        ),
        "Auto mesh, by the compiler": compiled(muon(0.02, matrix=stacked), auto, spec),
    }


def main() -> None:
    for name, (sizes, axes, spec) in MESHES.items():

        def mesh_of(kind: AxisType, sizes: Any = sizes, axes: Any = axes) -> Any:
            return jax.make_mesh(sizes, axes, axis_types=(kind,) * len(axes))

        moved = {k: list(received(text)) for k, text in candidates(mesh_of, spec).items()}
        for case in list(moved)[1:]:
            report(
                f"Muon on eight devices, {name}, {case}",
                metric="bytes_received",
                unit="bytes/step/device",
                values=[float(sum(moved[case]))],
                peer="optax",
                peer_values=[float(sum(moved["optax"]))],
                collectives=len(moved[case]),
                peer_collectives=len(moved["optax"]),
            )


if __name__ == "__main__":
    main()

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Devices of an executor, by the shardings that the parameters already have.

On a mesh the step runs on Auto axes, where the partitioner derives every sharding from those of the
parameters. Explicit axes would need the sharding of each result in the program. Arrays on a mesh
with Explicit axes are therefore retyped, without a copy. The pages are split over the mesh axis of
the key heads, which a compiled call of `features` shows.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import (
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
)

from dovetail_infer.step.layout import Layout

_TOKENS = 8


@dataclasses.dataclass(frozen=True)
class Placement:
    """Devices of the state of an executor.

    Attributes:
        mesh: Mesh of the parameters with Auto axes, or None for one device.
        whole: Sharding of state that is not split.
    """

    mesh: Mesh | None
    whole: Sharding

    @staticmethod
    def of(leaves: Sequence[Any]) -> Placement:
        """Returns the placement of parameters: their mesh, or their device.

        Raises:
            ValueError: They are on several meshes or devices.
        """
        shardings = {x.sharding for x in leaves if isinstance(x, jax.Array)}
        meshes = {_auto(s.mesh) for s in shardings if isinstance(s, NamedSharding)}
        devices = {d for s in shardings for d in s.device_set}
        if len(meshes) > 1 or (not meshes and len(devices) > 1):
            raise ValueError(
                "All parameters must be on one mesh or one device, got "
                f"{len(meshes)} meshes and {len(devices)} devices. Use jax.device_put(state, "
                "shardings) of one mesh."
            )
        if meshes:
            mesh = meshes.pop()
            return Placement(mesh, NamedSharding(mesh, PartitionSpec()))
        device = devices.pop() if devices else jax.devices()[0]
        return Placement(None, SingleDeviceSharding(device))

    @property
    def platform(self) -> str:
        """Platform of the devices, such as "cpu" and "gpu"."""
        return next(iter(self.whole.device_set)).platform

    def scope(self) -> Any:
        """Returns the context in which programs are traced."""
        return contextlib.nullcontext() if self.mesh is None else jax.set_mesh(self.mesh)

    def parameter(self, x: Any) -> jax.Array:
        """Returns an array on the mesh with Auto axes. It shares buffers."""
        if self.mesh is None or not isinstance(x, jax.Array):
            return jax.device_put(x, self.whole)
        if not isinstance(x.sharding, NamedSharding):
            return jax.device_put(x, self.whole)
        sharding = NamedSharding(self.mesh, x.sharding.spec, memory_kind=x.sharding.memory_kind)
        shards = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, sharding, shards, dtype=x.dtype)

    def pools(self, graph: Any, state: Any, layout: Layout) -> list[Sharding]:
        """Returns the sharding of the pages of each layer.

        Args:
            graph: The decoder without its arrays, of `nnx.split`.
            state: Its state, on this placement.
            layout: Its cache.
        """
        if self.mesh is None or self.mesh.size == 1:
            return [self.whole] * len(layout.layers)
        shardings = []
        for layer, axis in zip(layout.layers, self._head_axes(graph, state, layout), strict=True):
            names = axis if isinstance(axis, tuple) else (axis,)
            size = 1
            for name in names:
                size *= 1 if name is None else self.mesh.shape[name]
            spec = PartitionSpec(None, None, None, None if layer.heads % size else axis)
            shardings.append(NamedSharding(self.mesh, spec))
        return shardings

    def _head_axes(self, graph: Any, state: Any, layout: Layout) -> list[Any]:
        """Returns the mesh axes of the key heads of each layer, from a compiled call."""

        def keys(state: Any) -> list[jax.Array]:
            seen: list[Any] = []

            def attention(q: Any, k: Any, v: Any, *, kv: Any, **_: Any) -> Any:
                seen.append(k)
                # The output has to depend on q, k and v, with the sharding of their heads.
                out = jnp.repeat(v, q.shape[2] // v.shape[2], axis=2) + q[..., : v.shape[3]]
                return out, kv

            row = jnp.zeros((1, _TOKENS), jnp.int32)
            nnx.merge(graph, state).features(
                row,
                positions=row,
                segment_ids=row + 1,
                attention=attention,
                kv=[jnp.zeros(())] * len(layout.layers),
            )
            return seen

        with self.scope():
            compiled = jax.jit(keys).lower(state).compile()
        axes = []
        for sharding in compiled.output_shardings:
            spec = sharding.spec if isinstance(sharding, NamedSharding) else ()
            axes.append(spec[2] if len(spec) > 2 else None)
        return axes


def _auto(mesh: Any) -> Any:
    return mesh.update(axis_types=(AxisType.Auto,) * len(mesh.axis_names))

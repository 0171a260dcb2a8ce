# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that XLA's partitioner cannot divide among devices.

A custom call has no rule for it: Pallas's Mosaic GPU refuses to be lowered for several devices
outside of `jax.shard_map`, and XLA gathers the operands of a call of cuDNN by `jax.ffi`. Under
`jax.jit` with `in_shardings` alone no type tells, so a traced call without a mesh is whole only in
a process that sees one device.
"""

from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType


def is_whole(*arrays: Any) -> bool:
    """Tests whether a call of these arrays is lowered for one device, or for shards by `per_shard`.

    Args:
        arrays: Arguments of a call, without None.
    """
    types = [jax.typeof(array).sharding for array in arrays]
    meshes = [jax.sharding.get_abstract_mesh(), *(kind.mesh for kind in types)]
    known = [mesh for mesh in meshes if mesh.abstract_device is not None or not mesh.empty]
    for mesh in known:
        axes = {kind for kind, n in zip(mesh.axis_types, mesh.axis_sizes, strict=True) if n > 1}
        split = any(names is not None for kind in types for names in kind.spec)
        if not (axes <= {AxisType.Manual} or (axes == {AxisType.Explicit} and split)):
            return False
    if known:
        return True
    concrete = [array for array in arrays if isinstance(array, jax.Array | np.ndarray)]
    if len(concrete) < len(arrays) or any(isinstance(array, Tracer) for array in concrete):
        return jax.device_count() == 1
    on_devices = [array for array in concrete if isinstance(array, jax.Array)]
    return all(len(array.sharding.device_set) == 1 for array in on_devices)

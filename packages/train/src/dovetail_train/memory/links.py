# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bytes that a step sends over the links of its devices, at least.

Each gradient is summed over the devices that have other rows or tokens, and each parameter that is
split among them is gathered. In the best order both are one reduction to shards and one gathering:
first within a slice, then between slices. So of T bytes among L devices of S slices a device sends
2 (L-1)/L T within its slice, and 2 (S-1)/S T/L to others. Activations that tensor, context and
expert axes exchange depend on the model and are not included.
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from dovetail_train.mesh.mesh import BATCH_AXES


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkBytes:
    """Bytes that one device sends in a step, at least, in the dtypes of the parameters.

    Attributes:
        slices: Number of slices of the mesh.
        link_bytes: Within its slice.
        dcn_bytes: To other slices.
    """

    slices: int
    link_bytes: int
    dcn_bytes: int


def link_bytes(params: Any, slice_ids: np.ndarray) -> LinkBytes:
    """Returns the bytes of gradients and parameters over the links.

    Args:
        params: Trained parameters: arrays or `jax.ShapeDtypeStruct`, with shardings on one mesh.
        slice_ids: Slice of each device, in the shape of the mesh.
    """
    link = dcn = 0.0
    for x in jax.tree.leaves(params):
        names = list(x.sharding.mesh.axis_names)
        summed = {axis for axis in (*BATCH_AXES, "context") if axis in names}
        elsewhere = [axis for axis in _axes(x.sharding.spec) if axis not in summed]
        split = math.prod(x.sharding.mesh.shape[axis] for axis in elsewhere)
        total = math.prod(x.shape) * x.dtype.itemsize / split
        # The devices of one sum, at the first place of all other axes.
        group = slice_ids[tuple(slice(None) if axis in summed else 0 for axis in names)]
        slices = len(np.unique(group))
        local = group.size / slices
        link += 2 * (local - 1) / local * total
        dcn += 2 * (slices - 1) / slices * total / local
    return LinkBytes(slices=len(np.unique(slice_ids)), link_bytes=int(link), dcn_bytes=int(dcn))


def _axes(spec: Iterable[Any]) -> list[str]:
    """Returns the mesh axes of a PartitionSpec."""
    dimensions = [(axes,) if isinstance(axes, str) else axes or () for axes in spec]
    return [axis for axes in dimensions for axis in axes]

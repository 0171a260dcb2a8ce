# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Iteration over the leaves of a plan, assembled on the host one after another.

Source leaves are read in the order of the plan's leaves. Few leaves are incomplete at a time, so
memory peaks at one group and the incomplete leaves.
"""

from collections.abc import Callable, Iterator

import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint.layout import pieces
from dovetail_checkpoint.layout.mapping import Explanation, leaf_bytes
from dovetail_checkpoint.layout.source import Source, Value
from dovetail_checkpoint.paths.loading import proven_groups


def assembled(
    source: Source, plan: Explanation, *, read: Callable[[int], None], group_bytes: int = 1 << 30
) -> Iterator[tuple[str, Value]]:
    """Yields each leaf of the plan by name, in memory of its own, as soon as it is complete.

    Args:
        source: The leaves to read from.
        plan: The leaves to assemble.
        read: Called after each group with its bytes.
        group_bytes: Bytes to read at a time; at least 1.

    Raises:
        DamageError: A leaf differs from its digest.
    """
    for name, built in plan.built.items():
        if not built.pieces:
            yield name, np.empty(built.shape, jnp.dtype(built.dtype))
    uses = plan.uses()
    missing = {name: len(built.pieces) for name, built in plan.built.items()}
    filling: dict[str, np.ndarray] = {}
    for values in proven_groups(source, dict.fromkeys(uses), group_bytes=group_bytes):
        read(sum(leaf_bytes(source.leaves[name]) for name in values))
        for source_name in list(values):
            value = values.pop(source_name)
            for name, piece in uses[source_name]:
                if plan.is_unchanged(name):
                    yield name, value
                    continue
                built = plan.built[name]
                if name not in filling:
                    filling[name] = np.empty(built.shape, jnp.dtype(built.dtype))
                filling[name][piece.place] = pieces.block(np.asarray(value), piece)
                missing[name] -= 1
                if not missing[name]:
                    yield name, filling.pop(name)

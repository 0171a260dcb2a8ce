# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The leaves of a plan on the host, one after another, for what needs each only once.

Source leaves are read in the order in which the plan's leaves need them, so that few are filled at
a time: memory peaks at one group and what is being filled.
"""

from collections.abc import Callable, Iterator

import jax.numpy as jnp
import numpy as np

from dovetail_checkpoint import pieces
from dovetail_checkpoint.loading import proven_groups
from dovetail_checkpoint.mapping import Explanation, leaf_bytes
from dovetail_checkpoint.source import Source, Value


def assembled(
    source: Source, plan: Explanation, *, read: Callable[[int], None], group_bytes: int = 1 << 30
) -> Iterator[tuple[str, Value]]:
    """Each leaf of the plan by name, in memory of its own, as soon as it is whole.

    read: called after each group with its bytes.
    group_bytes: how much is read at a time, from 1 on.

    Raises DamageError if a leaf is not what was written.
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

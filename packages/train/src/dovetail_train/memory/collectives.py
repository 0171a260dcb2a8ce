# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Collectives of a compiled program, read off its text: kinds, bytes and groups of devices."""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from dovetail_train._groups import groups, result_bytes

_KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute|collective-broadcast"
_CALL = re.compile(rf"= (?P<result>.*?) (?P<kind>{_KINDS})(?:-start)?\((?P<rest>.*)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Collective:
    """One collective operation of a compiled program. In a loop it is listed once.

    Attributes:
        kind: "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute" or
            "collective-broadcast".
        result_bytes: Bytes of its results on one device.
        groups: Devices that exchange data, by their number in `mesh.devices.flat`. Those of a
            permutation are pairs of source and target.
    """

    kind: str
    result_bytes: int
    groups: tuple[tuple[int, ...], ...]

    def crosses(self, slice_ids: Sequence[int]) -> bool:
        """Tests whether a group has devices of several slices.

        Args:
            slice_ids: Slice of each device, as from `slice_ids(mesh)`.
        """
        return any(len({slice_ids[device] for device in group}) > 1 for group in self.groups)


def collectives(compiled: Any) -> tuple[Collective, ...]:
    """Returns the collectives of a compiled program, in the order of its text.

    Args:
        compiled: A `jax.stages.Compiled`, as from `Program.compile`.

    Raises:
        ValueError: The text has groups in a notation that is not known.

    Example:

        >>> import jax
        >>> collectives(jax.jit(lambda x: x + 1).lower(1.0).compile())
        ()
    """
    text = compiled.as_text()
    count = int((re.search(r"num_partitions=(\d+)", text) or [0, 1])[1])
    return tuple(
        Collective(
            kind=call["kind"],
            result_bytes=result_bytes(call["result"]),
            groups=groups(call["rest"], count),
        )
        for call in map(_CALL.search, text.splitlines())
        if call
    )

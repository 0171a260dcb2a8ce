# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Global batches of rows, the same on any number of hosts, from any row on."""

from typing import TYPE_CHECKING

from dovetail_data.rows import Rows

if TYPE_CHECKING:
    from dovetail_data._iterator import Batches


def batches(
    rows: Rows,
    *,
    global_batch: int,
    seed: int | None,
    shard: tuple[int, int] = (0, 1),
    epochs: int | None = None,
) -> "Batches":
    """An iterator over batches of `global_batch` rows, shuffled anew in each epoch.

    seed: of the shuffle; None keeps the order of the rows. shard: (i, n), this host and how many
    there are; host i gets rows [iB/n, (i + 1)B/n) of each global batch, so that the hosts together
    hold the same global batch for any n. epochs: None never ends; a number gives each row that
    many times, the last batch filled up with rows of mask 0.
    """
    # Here, not above: Grain imports JAX, 1.5 s that each worker of `write` would pay too.
    from dovetail_data._iterator import Batches

    return Batches(rows, global_batch=global_batch, seed=seed, shard=shard, epochs=epochs)

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
    max_corrupt: int = 0,
    threads: int = 0,
    workers: int = 0,
) -> "Batches":
    """An iterator over batches of `global_batch` rows, shuffled anew in each epoch.

    seed: of the shuffle; None keeps the order of the rows. shard: (i, n), this host and how many
    there are; host i gets rows [iB/n, (i + 1)B/n) of each global batch, so that the hosts together
    hold the same global batch for any n. epochs: None never ends; a number gives each row that
    many times, the last batch filled up with rows of mask 0.

    max_corrupt: how many documents that this host reads may be damaged. They are masked where they
    stand, counted and listed by `stats()`; one more raises CorruptError, and so does the first by
    default. threads, workers: threads or processes that read ahead, two batches each; 0 reads when
    asked. Threads hide a slow disk; processes also share the work of `map` and `images`, and need
    a script guarded by `if __name__ == "__main__":`.
    """
    # Here, not above: Grain imports JAX, 1.5 s that each worker of `write` would pay too.
    from dovetail_data._iterator import Batches

    return Batches(
        rows,
        global_batch=global_batch,
        seed=seed,
        shard=shard,
        epochs=epochs,
        max_corrupt=max_corrupt,
        threads=threads,
        workers=workers,
    )

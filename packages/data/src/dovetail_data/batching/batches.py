# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Global batches of rows: the same on any number of hosts, and readable from any row."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dovetail_data import _elsewhere
from dovetail_data.rows.rows import Rows, require_rows

if TYPE_CHECKING:
    from dovetail_data.batching.iterator import Batches


@_elsewhere.batches
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
    leave_out: Sequence[range] = (),
) -> "Batches":
    """Returns an iterator over batches of `global_batch` rows, shuffled anew in each epoch.

    The iterator yields dictionaries of NumPy arrays, with this host's share of the rows. It is a
    Grain `DatasetIterator`. Beside `next` it has `get_state`, `set_state`, `batch(step)`,
    `places(step)`, `explain(step)` and `stats()`.

    Args:
        rows: The rows, from `pack`, `pad`, `pairs`, `prompts`, `images` or `mix`.
        global_batch: Rows per batch, summed over all hosts. A multiple of the number of hosts; with
            `pairs`, of twice that.
        seed: Seed of the shuffle. None keeps the order of the rows.
        shard: This host and the number of hosts, (i, n). Host i gets rows [iB/n, (i + 1)B/n) of
            each global batch of B rows. The hosts together therefore hold the same global batch for
            any n.
        epochs: Number of passes over the rows. The last batch is filled up with rows of mask 0.
            None never ends.
        max_corrupt: Damaged documents that this host may read. Each is masked in its place, counted
            and listed by `stats()`. With the default, the first raises.
        threads: Threads that read ahead, two batches each. They hide a slow disk. 0 reads on
            demand.
        workers: Processes that read ahead, two batches each. They also share the work of `map` and
            `images`; their functions must then pickle. They need a script guarded by
            `if __name__ == "__main__":`. Pass threads or workers, not both.
        leave_out: Places in the order to pass over, such as `[it.places(100)]` for the rows of
            batch 100. All other rows keep their order. Places are numbered as the "row" of a state,
            through all epochs; a preference pair is one place. A state from before a left-out place
            may be set on an iterator that leaves it out, so a run can go back and pass over the
            batches of a loss spike.

    Returns:
        The iterator. Its state is JSON with the entries "row", the place after the row delivered
        last, and "fingerprint", the identity of the rows and the seed. The state is equal on all
        hosts and does not count batches read ahead. It may be set on an iterator with another shard
        or global batch.

    Raises:
        ValueError: An option is out of range, global_batch does not divide over the hosts,
            `epochs` is given for rows without an end, or `leave_out` lies beyond the epochs.
        CorruptError: By `next`, when more than `max_corrupt` documents are damaged.

    Example:

        >>> from pathlib import Path
        >>> from dovetail_data import Bytes, Text, pack, text, write
        >>> _ = Path("a.txt").write_text("To be, or not to be: that is the question.")
        >>> corpus = write(text("a.txt"), "corpus", encoder=Text(Bytes()))
        >>> it = batches(pack(corpus, length=8), global_batch=2, seed=0)
        >>> next(it)["tokens"].shape
        (2, 8)
    """
    require_rows(rows)
    # Imported late: Grain imports JAX, 1.5 s that each worker of `write` would pay too.
    from dovetail_data.batching.iterator import Batches

    return Batches(
        rows,
        global_batch=global_batch,
        seed=seed,
        shard=shard,
        epochs=epochs,
        max_corrupt=max_corrupt,
        threads=threads,
        workers=workers,
        leave_out=leave_out,
    )

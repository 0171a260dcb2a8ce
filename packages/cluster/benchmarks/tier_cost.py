# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Seconds for which a save holds up training: on the shelves, and by a durable store.

The peer is the store that the tier stands in front of, `dovetail_checkpoint.Store`, in the folder
for temporary files. One host saves whole; two hosts save their shares and copy them to each other.
`save` is what training waits for, `whole` the time until the step has digests and a copy, or is
committed with checksums.
"""

import os
import tempfile
import time
from typing import Any

from dovetail_cluster import Cluster
from measure import report

MIB = (16, 128)  # of the arrays together
REPEATS = 5


def timed(ctx: Any, folder: str, mib: int) -> dict[str, list[float]]:
    """Saves on the shelves and to the store by turns. Returns seconds by case."""
    import jax
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    from dovetail_checkpoint import Retention, Store
    from dovetail_cluster import LocalTier
    from dovetail_cluster.tier.agree import gather

    class NoStore:
        """A store that gets nothing."""

        def save(self, step, **items):
            raise AssertionError

        def restore(self, **targets):
            return None

        def peek(self, name):
            return None

        def wait(self):
            pass

    sharding = NamedSharding(ctx.mesh(data=-1), PartitionSpec("data"))
    rows = np.random.default_rng(0).normal(size=(8, mib << 14)).astype(np.float32)
    shape = (8, rows.shape[1] // 4)
    tree = {
        str(i): jax.make_array_from_callback(
            shape, sharding, lambda at, i=i: rows[:, i * shape[1] : (i + 1) * shape[1]][at]
        )
        for i in range(4)
    }
    tier = LocalTier(ctx, NoStore(), store_every=10**9)
    seconds = {"save": [], "whole": [], "store save": [], "store whole": []}
    with Store(os.path.join(folder, str(mib)), retention=Retention(latest=1)) as store:
        for step in range(1, REPEATS + 2):
            for name, save, wait in (
                ("", tier.save, tier._settle),
                ("store ", store.save, store.wait),
            ):
                gather(None)
                begun = time.perf_counter()
                save(step, t=tree)
                seconds[f"{name}save"].append(time.perf_counter() - begun)
                wait()
                seconds[f"{name}whole"].append(time.perf_counter() - begun)
    return {name: values[1:] for name, values in seconds.items()}


def main() -> None:
    """Prints a line for each case."""
    for hosts in (1, 2):
        with Cluster.local(hosts=hosts) as cluster, tempfile.TemporaryDirectory() as folder:
            for mib in MIB:
                seconds = cluster.run(timed, folder, mib).value
                for metric in ("save", "whole"):
                    report(
                        f"{mib} MiB on {hosts} hosts",
                        metric=metric,
                        unit="s",
                        values=seconds[metric],
                        peer="dovetail-checkpoint",
                        peer_values=seconds[f"store {metric}"],
                        bytes_per_s=(mib << 20) / hosts / min(seconds[metric]),
                    )


if __name__ == "__main__":
    main()

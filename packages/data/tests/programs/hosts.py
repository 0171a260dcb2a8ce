# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One of `count` processes that take batches onto all devices of all of them.

Arguments: a corpus, this process, how many there are, a port, a state to go on from, and steps.
Prints one line of JSON per step: the state, and (first row, its sums) of each shard held here.
"""

import json
import sys

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dovetail_data import Corpus, batches, mix, pack, to_device


def held(array) -> list[list[int]]:
    """(first row, sum, weighted sum) of each shard."""
    rows = []
    for shard in array.addressable_shards:
        values = np.asarray(shard.data).astype(np.int64)
        weighted = int((values * np.arange(values.size).reshape(values.shape)).sum())
        rows.append([shard.index[0].start or 0, int(values.sum()), weighted])
    return rows


def main() -> None:
    directory, process, count, port, state, steps = sys.argv[1:]
    if count != "1":
        jax.distributed.initialize(f"localhost:{port}", int(count), int(process))
    mesh = Mesh(np.array(jax.devices()), ("data",))
    packed = pack(Corpus(directory), length=13, seed=0)
    rows = mix({"a": packed, "b": packed}, weights={"a": 2, "b": 1})
    shard = (jax.process_index(), jax.process_count())
    local = batches(rows, global_batch=8, seed=1, shard=shard)
    it = to_device(local, NamedSharding(mesh, PartitionSpec("data")))
    if state:
        it.set_state(json.loads(state))
    for _ in range(int(steps)):
        batch = next(it)
        assert batch["tokens"].shape == (8, 13)
        shards = {name: held(array) for name, array in batch.items()}
        print(json.dumps([it.get_state(), shards]), flush=True)
    it.close()


main()

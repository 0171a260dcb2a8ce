# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import os
from pathlib import Path

import numpy as np

from dovetail_cluster import Cluster


def train(context, saved):
    from jax.experimental.multihost_utils import process_allgather

    step = start = int(saved.read_text()) if saved.exists() else 0
    while step < 10 and not context.stop(step):
        step += 1
        total = process_allgather(np.array(context.rank)).sum()  # your step
        context.progress.write(step, {})
        if context.rank == 0:
            saved.write_text(str(step))  # your checkpoint
            if step == 5 and context.generation == 0:
                os.kill(os.getpid(), 9)  # the crash
    return start, step, total


with Cluster.local(hosts=2) as cluster:
    values = cluster.run(train, Path("saved").absolute()).values
start, end, total = values[0]
print("after the crash: step", start, "to", end, "with a sum of ranks of", total)
# prints: after the crash: step 5 to 10 with a sum of ranks of 1

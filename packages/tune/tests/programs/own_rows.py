# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One of two processes that share a folder of reference log-probabilities: ID PORT FOLDER.

Each scores its own rows, then reads those of the other, and refuses a model on both.
"""

import sys
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

sys.path.append(str(Path(__file__).parent.parent))

from batches import rows_of

from dovetail_tune import with_reference
from dovetail_tune.testing import TinyDecoder


def main(me, port, folder):
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=me)
    model = TinyDecoder(width=8, rngs=nnx.Rngs(0))
    own, other = (rows_of(rows=2, seed=seed) for seed in (me, 1 - me))
    with with_reference([own], model, folder) as data:
        values = next(data)["ref_logps"]
        assert data.counts()["computed"] == 2
    everyone = multihost_utils.process_allgather(values)
    with with_reference([other], model, folder) as data:
        np.testing.assert_array_equal(next(data)["ref_logps"], everyone[1 - me])
        assert data.counts()["runs"] == 0

    mesh = jax.make_mesh((2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    whole = NamedSharding(mesh, PartitionSpec())
    graph, state = nnx.split(model)
    spread = jax.tree.map(
        lambda x: jax.make_array_from_process_local_data(whole, np.asarray(x)), state
    )
    try:
        with_reference([own], nnx.merge(graph, spread))
    except ValueError as error:
        message = str(error)
    assert "all its arrays on this process, got embed.embedding on several; train" in message
    assert "reference=Frozen()" in message
    print("ok")


main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

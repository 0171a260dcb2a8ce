# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Two processes that see different files, as by a stale cache or a disk of their own.

The manifests of step 3 are missing for process 1, and bits of step 2 differ for process 0, in
files of which the other process compares the sums. Both must restore step 1, and go on. One that
waited for the other in a barrier of Orbax would end by its time limit, with an error.
"""

import shutil
import sys
from pathlib import Path

import jax
import numpy as np
import processes
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dovetail_checkpoint import Store
from dovetail_checkpoint.proof import agree


def array(values: np.ndarray) -> jax.Array:
    mesh = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])


def damage(own: Path, process: int) -> None:
    if process == 1:
        for path in (own / "3").rglob("manifest.ocdbt"):
            path.unlink()
    else:
        for path in (own / "2").rglob("d/*"):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)


def refuses(process: int, error: Exception | None) -> str:
    """What `raise_together` raises."""
    try:
        agree.raise_together(error)
    except (OSError, RuntimeError) as raised:
        return f"{type(raised).__name__}: {raised}"
    return "nothing"


def work(process: int, root: Path) -> None:
    values = np.random.default_rng(0).normal(size=(64, 33)).astype(np.float32)
    x = array(values)
    target = {"w": jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)}
    with Store(root) as store:
        for step in (1, 2, 3):
            store.save(step, item={"w": x * step})
    own = root / f"seen by {process}"
    shutil.copytree(root, own, ignore=shutil.ignore_patterns("seen*", ".dovetail-writer*"))
    damage(own, process)
    store = Store(own)
    step, items = store.restore(item=target)
    local = items["item"]["w"].addressable_shards[0]
    assert np.asarray(local.data).tobytes() == values[local.index].tobytes()
    with Store(root) as store:  # Orbax's barriers still meet
        store.save(4, item={"w": x * 4})
        assert store.restore(item=target)[0] == 4
        if process == 0:
            shutil.copytree(root / "4", root / "5")
        agree.gather("copied")
        assert store.restore(item=target)[0] == 4
        assert [bool(tried.problems) for tried in store.report.steps] == [True, False]
        refused = ""
        try:  # a leaf that one process cannot save
            store.save(6, item={"w": x, "more": "text" if process == 1 else 1})
        except (TypeError, RuntimeError) as error:
            refused = type(error).__name__
        try:  # an array that lies on devices of one process, on each
            store.save(6, item={"w": x, "more": jax.numpy.ones(3)})
        except ValueError as error:
            refused += ", " + str(error).partition(",")[0]
    assert len({step.identity.run for step in store.steps()}) == 1
    assert refuses(process, None) == "nothing"
    raised = refuses(process, OSError("gone") if process == 1 else None)
    # One that cannot be written, for the process that makes room.
    (root / "file").touch()
    unwritable = ""
    try:
        Store(root / "file" / "run").save(1, item={"w": x})
    except (OSError, RuntimeError) as error:
        unwritable = type(error).__name__
    print(
        f"{process}: restored {step}; raised {raised}; unwritable: {unwritable}; refused: {refused}"
    )


processes.start(lambda process: work(process, Path(sys.argv[1])))

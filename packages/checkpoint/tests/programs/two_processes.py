# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Two processes over gloo: one commit of a sharded array, one damaged file, other process counts.

Each part prints a line for each of its processes.
"""

import signal
import sys
from pathlib import Path

import jax
import numpy as np
import processes
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dovetail_checkpoint import DamageError, Store, load, on_signal, stack, verify
from dovetail_checkpoint.proof import agree

VALUES = np.random.default_rng(0).normal(size=(64, 33)).astype(np.float32)


class Row:
    """A state of its own on each process."""

    def __init__(self, row: int) -> None:
        self.row = row

    def get_state(self) -> dict:
        return {"row": self.row}

    def set_state(self, state: dict) -> None:
        self.row = state["row"]


def array() -> jax.Array:
    mesh = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    return jax.make_array_from_callback(VALUES.shape, sharding, lambda index: VALUES[index])


def check_gather(process: int) -> None:
    """Values of unequal lengths, in one collective and in two."""
    for length in (0, 1, 40, 60, 61, 1000):
        wanted = [{"process": i, "text": "é" * length * i} for i in range(2)]
        assert agree.gather(wanted[process]) == wanted


def restore(process: int, store: Store, **targets: object) -> str:
    x = array()
    target = {"w": jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)}
    step, items = store.restore(item=target, **targets)
    local = items["item"]["w"].addressable_shards[0]
    assert np.asarray(local.data).tobytes() == VALUES[local.index].tobytes()
    tried = [report.step for report in store.report.steps]
    return f"{process} of {jax.process_count()} restored {step} of {tried}"


def damaged(process: int, root: Path) -> None:
    check_gather(process)
    x = array()
    with Store(root) as store:
        for step in (1, 2):
            store.save(step, item={"w": x * step}, data=Row(10 * step + process))
        store.wait()
        if process == 0:
            data = max((root / "2" / "item").rglob("d/*"), key=lambda path: path.stat().st_size)
            bits = bytearray(data.read_bytes())
            bits[len(bits) // 2] ^= 1
            data.write_bytes(bits)
        agree.gather("damaged")
        row = Row(0)
        line = restore(process, store, data=row)
    with on_signal(signal.SIGTERM) as stop:
        try:
            stop.poll(process)
        except RuntimeError as error:
            if "must poll the same step, got steps=[0, 1]; call poll once" in str(error):
                line += ", other steps are refused"
    print(f"{line}, row {row.row}")


def loaded(process: int, root: Path) -> None:
    """Stacked by rules on both processes; damage in one's part of the array stops both."""
    x = array()
    with Store(root) as store:
        store.save(1, item={"l": [x, x * 2]})
    place = NamedSharding(x.sharding.mesh, PartitionSpec(None, "data"))
    target = {"l": jax.ShapeDtypeStruct((2, *x.shape), x.dtype, sharding=place)}
    rules = [stack("l/#", "l")]
    local = load(root / "1", target, rules=rules)["l"].addressable_shards[0]
    assert np.asarray(local.data).tobytes() == np.stack([VALUES, VALUES * 2])[local.index].tobytes()
    assert verify(root / "1").steps[0].verified
    agree.gather("loaded")
    if process == 1:
        mine = np.asarray(x.addressable_shards[0].data).tobytes()
        (data,) = (p for p in root.rglob("d/*") if mine in p.read_bytes())
        bits = data.read_bytes()
        at = bits.index(mine)
        data.write_bytes(bits[:at] + b"!" + bits[at + 1 :])
    agree.gather("damaged")
    try:
        load(root / "1", target, rules=rules)
    except DamageError as error:
        named = [problem.where for problem in error.problems]
        print(f"{process} loaded, and then found {named[0]} and {len(named) - 1} file damaged")


def by_others(process: int, root: Path) -> None:
    """What another number of processes saved: arrays return, states of each process do not."""
    store = Store(root)
    print(restore(process, store))
    try:
        store.restore(step=1, data=Row(0))
    except ValueError as error:
        print(f"{process} of {jax.process_count()}: {error}")


def alone(process: int, root: Path) -> None:
    with Store(root) as store:
        store.save(1, item={"w": array()}, data=Row(7))


def shared(process: int, root: Path) -> None:
    row = Row(0)
    print(f"{restore(process, Store(root), data=row)}, row {row.row}")


def main(root: Path) -> None:
    processes.start(lambda process: damaged(process, root / "by two"))
    processes.start(lambda process: loaded(process, root / "layers"))
    processes.start(lambda process: by_others(process, root / "by two"), count=1)
    processes.start(lambda process: alone(process, root / "by one"), count=1)
    processes.start(lambda process: shared(process, root / "by one"))


main(Path(sys.argv[1]))

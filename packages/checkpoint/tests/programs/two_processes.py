# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Two processes over gloo: one commit of a sharded array, one damaged file, one signal."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dovetail_checkpoint import Store, agree, on_signal


class Row:
    """A state of its own on each process."""

    def __init__(self, row: int) -> None:
        self.row = row

    def get_state(self) -> dict:
        return {"row": self.row}

    def set_state(self, state: dict) -> None:
        self.row = state["row"]


def work(root: Path, process: int, port: str) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", 2, process)
    mesh = Mesh(np.array(jax.devices()), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    values = np.random.default_rng(0).normal(size=(64, 33)).astype(np.float32)
    x = jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    assert agree.gather({"p": process, "pad": "x" * process}) == [
        {"p": 0, "pad": ""},
        {"p": 1, "pad": "x"},
    ]
    target = {"w": jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)}
    with Store(root) as store:
        for step in (1, 2):
            store.save(step, item={"w": x * step}, data=Row(10 * step + process))
        store.wait()
        if process == 0:
            data = max((root / "2" / "item").rglob("d/*"), key=lambda path: path.stat().st_size)
            damaged = bytearray(data.read_bytes())
            damaged[len(damaged) // 2] ^= 1
            data.write_bytes(damaged)
        agree.gather("damaged")
        row = Row(0)
        step, items = store.restore(item=target, data=row)
        local = items["item"]["w"].addressable_shards[0]
        assert np.asarray(local.data).tobytes() == values[local.index].tobytes()

    with on_signal(signal.SIGTERM) as stop:
        assert not stop.poll(1)
        if process == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.poll(2)
    tried = [report.step for report in store.report.steps]
    print(f"{process} restored {step} after a damaged {tried[0]}, row {row.row}", flush=True)


def main(root: str) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, root, str(i), port], stdout=subprocess.PIPE, text=True
        )
        for i in range(2)
    ]
    for process in processes:
        lines = process.communicate()[0].splitlines()
        print(*(line for line in lines if not line.startswith("[Gloo]")), sep="\n")
    assert all(process.returncode == 0 for process in processes)


if len(sys.argv) == 2:
    main(sys.argv[1])
else:
    work(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Two processes of two devices that pass the same rows, and their own: same_rows.py DIR.

Writes, as JSON, what process 0 logs by case, and the shares of the rows of both processes: on a
mesh whose rows are split between the processes, and on one with a tensor axis between them.
"""

import json
import logging
import sys
from pathlib import Path

import several

from dovetail_train import make_mesh, process_shard
from dovetail_train.mesh.processes import Compared, gather


def work(me, count, *, out):
    split, tensor = make_mesh(data=2, fsdp=2), make_mesh(fsdp=2, tensor=2)
    # Of a mesh in the order of its devices, tensor is the innermost axis: across the processes.
    tensor = type(tensor)(tensor.devices.reshape(2, 2).T.reshape(tensor.devices.shape),
                          tensor.axis_names, axis_types=tensor.axis_types)  # fmt: skip
    said = {}
    for case, mesh, rows in (
        ("same", split, several.rows_of(0, 0, 1)),
        ("own", split, several.rows_of(0, me, count)),
        ("tensor", tensor, several.rows_of(0, 0, 1)),
    ):
        texts = []
        handler = logging.Handler()
        handler.emit = lambda record, texts=texts: texts.append(record.getMessage())
        logging.getLogger("dovetail_train").addHandler(handler)
        place = Compared(lambda batch: batch, mesh)
        place(rows)
        place(several.rows_of(0, 0, 1))  # only the first batch is compared
        logging.getLogger("dovetail_train").removeHandler(handler)
        said[case] = " ".join(texts)
    said["shards"] = gather(process_shard(split))
    said["tensor_shards"] = gather(process_shard(tensor))
    if me == 0:
        out.write_text(json.dumps(said))


def main():
    directory = Path(sys.argv[1])
    out = directory / "said"
    launch = several.Launch(
        lambda me, count: work(me, count, out=out), count=2, log=directory / "log"
    )
    assert launch.wait() == [0, 0], launch.output(0) + launch.output(1)
    sys.stdout.write(out.read_text())


main()

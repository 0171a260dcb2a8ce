# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Two processes, of which process 0 works and fails: firsts.py DIR.

Writes a list with an object for each process, as JSON.
"""

import json
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import several
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from dovetail_train import check_shared, gather_module, make_mesh, on_first
from dovetail_train.mesh import processes

processes.ROUND_S = 0.1  # so that the work lasts several rounds


def slow(me):
    time.sleep(0.5)
    return {"of": me}


def fails():
    error = ValueError("no text")
    error.exit_code = 3
    error.add_note("look below")
    raise error


def raised(call, *arguments):
    try:
        call(*arguments)
    except (ValueError, RuntimeError) as error:
        return error
    return ""


def work(me, count, *, directory):
    own = directory / f"of-{me}"
    own.mkdir()
    for folder in (directory, own) if me == 0 else ():
        (folder / "file").write_text("x")
    said = {"result": on_first(lambda: slow(me))}
    error = raised(on_first, fails)
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    said["failed"] = [type(error).__name__, text, error.exit_code]
    said["shared"] = str(raised(check_shared, directory / "file"))
    said["apart"] = str(raised(check_shared, own / "file"))
    mesh = make_mesh(data=4)
    rows = jax.make_array_from_callback(
        (8,), NamedSharding(mesh, PartitionSpec("data")), lambda index: jnp.arange(8.0)[index]
    )
    key = processes.put(jax.random.key(7), NamedSharding(mesh, PartitionSpec()))  # as of dropout
    whole = gather_module(nnx.Dict(x=nnx.Param(rows), key=nnx.RngKey(key, tag="dropout")))
    said["whole"] = None if whole is None else whole["x"].get_value().tolist()
    said["draw"] = None if whole is None else float(jax.random.uniform(whole["key"].get_value()))
    (directory / f"said-{me}").write_text(json.dumps(said))


def main():
    directory = Path(sys.argv[1])
    launch = several.Launch(
        lambda me, count: work(me, count, directory=directory), count=2, log=directory / "log"
    )
    assert launch.wait() == [0, 0], launch.output(0) + launch.output(1)
    said = [json.loads((directory / f"said-{me}").read_text()) for me in range(2)]
    sys.stdout.write(json.dumps(said))


main()

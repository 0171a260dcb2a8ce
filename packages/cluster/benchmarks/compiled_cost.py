# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Seconds of `compiled`, with its process, against lower and compile in one fresh process of JAX.

The program is a gradient through 24 unrolled layers on eight CPU devices.
"""

import functools
import os
import resource
import subprocess
import sys
import time

from dovetail_cluster import compiled, devices
from measure import report, rounds

REPEATS = 3
TARGET = devices("CPU x 8")


def build(devices, *, layers=24, width=256):
    import jax
    import jax.numpy as jnp

    auto = (jax.sharding.AxisType.Auto,) * 2
    mesh = jax.make_mesh((4, 2), ("data", "tensor"), axis_types=auto, devices=devices)

    def shaped(*shape, spec):
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding)

    def loss(weights, x):
        for up, down in weights:
            q = x @ up
            scores = jax.nn.softmax(q @ q.swapaxes(-1, -2), axis=-1)
            x = x + jnp.tanh(scores @ q) @ down
        return (x * x).mean()

    up = shaped(width, 2 * width, spec=(None, "tensor"))
    down = shaped(2 * width, width, spec=("tensor", None))
    x = shaped(8, 64, width, spec=("data",))
    return jax.jit(jax.value_and_grad(loss)).lower([(up, down)] * layers, x)


def bare():
    import jax

    build(jax.devices()).compile()


def _cost(call) -> tuple[float, float]:
    """Seconds of wall, and CPU seconds of the processes that the call has started."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    call()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, cpu_s


def _in_a_process() -> None:
    variables = {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={TARGET.count}",
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
    }
    line = [sys.executable, __file__, "bare"]
    subprocess.run(line, env=os.environ | variables, check=True)


def main() -> None:
    peer = functools.partial(_cost, _in_a_process)
    ours = functools.partial(_cost, lambda: compiled(build, target=TARGET))
    results = rounds({"ours": ours, "peer": peer, "again": peer}, repeats=REPEATS)
    for i, metric in enumerate(("wall_s", "cpu_s")):
        values = {name: [cost[i] for cost in costs] for name, costs in results.items()}
        report(
            f"compiled for {TARGET}",
            metric=metric,
            unit="s",
            values=values["ours"],
            peer="jax",
            peer_values=values["peer"],
            peer_again=values["again"],
            limit_ratio=1.1,
        )


if __name__ == "__main__":
    bare() if sys.argv[1:] == ["bare"] else main()

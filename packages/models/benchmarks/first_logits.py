# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Seconds until a model of 24 layers gives its first logits: trace, compile and run, by layout.

Scanned, the program holds one copy of the layer; unrolled, the peer, 24. Logits are compared first.
MaxText, which the design page names, needs a Python and a JAX of its own and is no peer here.
Each measurement is a process of its own, so that nothing is compiled before it begins.
"""

import json
import subprocess
import sys

import numpy as np

from measure import report, rounds

CONFIG = {
    "vocab_size": 2048,
    "embed": 256,
    "depth": 24,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 64,
    "mlp": 704,
}
PROGRAM = """
import json, sys, time
import jax, jax.numpy as jnp
from flax import nnx
from dovetail_models import init, llama

config, scan = json.loads(sys.argv[1])
model = init(llama(**config), seed=0).configure(scan=scan)
tokens = jnp.arange(64)[None]
graph, state = jax.block_until_ready(nnx.split(model))
start = time.perf_counter()
logits = jax.jit(lambda s, t: nnx.merge(graph, s)(t))(state, tokens).block_until_ready()
seconds = time.perf_counter() - start
print(json.dumps([seconds, logits[0, ::16, ::512].tolist()]))
"""


def first_logits(*, scan: bool) -> tuple[float, list[list[float]]]:
    """(seconds, some of the logits)."""
    command = [sys.executable, "-c", PROGRAM, json.dumps([CONFIG, scan])]
    return tuple(json.loads(subprocess.check_output(command)))


def main() -> None:
    calls = {"scan": True, "unrolled": False, "unrolled again": False}
    found = rounds({n: (lambda s=s: first_logits(scan=s)) for n, s in calls.items()}, repeats=5)
    for name, results in found.items():
        for _, logits in results:
            # Scanning changes no bit of the logits.
            np.testing.assert_array_equal(logits, found["unrolled"][0][1], err_msg=name)
    seconds = {name: [s for s, _ in results] for name, results in found.items()}
    report(
        "first logits, Llama of 24 layers, scanned",
        metric="wall_s",
        unit="s",
        values=seconds["scan"],
        peer="the same, unrolled",
        peer_values=seconds["unrolled"],
        peer_again=seconds["unrolled again"],
    )


if __name__ == "__main__":
    main()

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""GPTQ of a square weight to int4 in groups of 128: ours against Qwix, the same gram and damping.

Qwix's function is a Python loop over inputs, run as its own tests run it, without jit: the trace
of 2048 inputs would be compiled for longer than it runs. Both are timed after one call of the same
shapes, which for us is the compilation. The relative output errors of both, and of
round-to-nearest, stand beside the times. `--inputs` chooses the sizes; Qwix takes minutes at 2048.
"""

import argparse
import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
import qwix
from qwix.contrib import gptq_core

from dovetail_quant.codes import codes
from dovetail_quant.codes.spec import Spec
from dovetail_quant.methods.gptq import gptq
from dovetail_quant.methods.reconstruct import channel_errors
from measure import Cost, cost, report, rounds

GROUP = 128
SPEC = Spec(weight="int4", group=GROUP, method="gptq")


def problem(inputs: int) -> tuple[jax.Array, jax.Array]:
    """w[K, K], and the gram of 2 K rows whose inputs share a sixteenth as many causes."""
    rng = np.random.default_rng(0)
    causes = rng.standard_normal((2 * inputs, inputs // 16)).astype(np.float32)
    x = causes @ rng.standard_normal((inputs // 16, inputs)).astype(np.float32)
    x += 0.05 * np.sqrt(inputs / 16) * rng.standard_normal(x.shape).astype(np.float32)
    w = rng.standard_normal((inputs, inputs)).astype(np.float32)
    return jnp.asarray(w), jnp.asarray(x.T @ x)


def theirs(w: jax.Array, gram: jax.Array) -> jax.Array:
    """The weight as Qwix leaves it, [K, N]."""
    how = gptq_core.qarray.HowToQuantize(
        qtype=jnp.int4, channelwise_axes=(0,), tiled_axes={1: GROUP}
    )
    q, _ = gptq_core.quantize_weight(w.T, gram, how, blocksize=128, percdamp=0.01)
    return jax.block_until_ready(qwix.dequantize(q)).T


def relative(q: jax.Array, w: jax.Array, gram: jax.Array) -> float:
    error, signal = channel_errors(q - w, gram).sum(), channel_errors(w, gram).sum()
    return float(jnp.sqrt(error / signal))


def case(inputs: int, order: str, repeats: int, peer: dict[int, tuple[list[Cost], float]]) -> None:
    w, gram = problem(inputs)
    call = functools.partial(gptq, w, gram, SPEC, order=order)
    begin = time.perf_counter()
    q, found = jax.block_until_ready(call())
    first = time.perf_counter() - begin
    if inputs not in peer:
        theirs(w, gram)
        costs = rounds({"qwix": lambda: cost(lambda: theirs(w, gram))}, repeats=1)["qwix"]
        peer[inputs] = costs, relative(theirs(w, gram), w, gram)
    ours = rounds({"ours": lambda: cost(lambda: jax.block_until_ready(call()))}, repeats=repeats)
    wall, (costs, error) = [c.wall_s for c in ours["ours"]], peer[inputs]
    report(
        f"{inputs}x{inputs} int4 g{GROUP} {order}",
        metric="wall_s",
        unit="s",
        values=wall,
        peer="qwix",
        peer_values=[costs[0].wall_s] * len(wall),
        compile_s=first - min(wall),
        relative_error=relative(codes.dequantize(q), w, gram),
        peer_relative_error=error,
        nearest_relative_error=float(jnp.sqrt(found.nearest / found.signal)),
        peer_repeats=len(costs),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    peer: dict[int, tuple[list[Cost], float]] = {}
    for inputs in chosen.inputs:
        for order in ("natural", "activation"):
            case(inputs, order, chosen.repeats, peer)


if __name__ == "__main__":
    main()

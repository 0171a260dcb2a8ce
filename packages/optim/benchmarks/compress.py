# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What Adam's state in codes of eight bits costs and saves, beside float32 state.

A step is an update, with donated gradients and state, of a few matrices. Values are CPU time over
all threads, bytes of state a parameter, and temporary bytes over those of the largest leaf; the
paths' distance after noisy steps down a quadratic, relative to the distance travelled, comes last.
The limit of the time is the bandwidth of float32 gradients, updates and parameters: a third of it
is saved.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dovetail_optim.compressing.codec import fp8, fp8_positive
from dovetail_optim.compressing.compress import compress
from measure import cost, report, rounds

SIZES = {"embed": (8192, 1024), "up": (1024, 4096), "down": (4096, 1024), "norm": (1024,)}
PEER = "optax"


def tree(seed: int) -> Any:
    keys = jax.random.split(jax.random.key(seed), len(SIZES))
    return {k: jax.random.normal(key, n) for (k, n), key in zip(SIZES.items(), keys, strict=True)}


class Case:
    """A transformation, compiled, and its state between steps."""

    def __init__(self, tx: optax.GradientTransformation):
        self.params = tree(0)
        self.state = jax.jit(tx.init)(self.params)
        step = jax.jit(tx.update, donate_argnums=(0, 1))
        lowered = step.lower(self.params, self.state, self.params)
        self.compiled = []
        self.compile = cost(lambda: self.compiled.append(lowered.compile()))

    def bytes_a_parameter(self) -> float:
        count = sum(x.size for x in jax.tree.leaves(self.params))
        return sum(x.nbytes for x in jax.tree.leaves(self.state)) / count

    def temporary(self) -> float:
        analysis = self.compiled[0].memory_analysis()
        return analysis.temp_size_in_bytes / max(x.nbytes for x in jax.tree.leaves(self.params))

    def step(self) -> float:
        grads = jax.block_until_ready(tree(1))

        def call() -> None:
            updates, self.state = self.compiled[0](grads, self.state, self.params)
            jax.block_until_ready((updates, self.state))

        return cost(call).cpu_s


def distance() -> float:
    """Of 200 steps of both from one start: the RMS between their ends, over that travelled."""
    rng = np.random.default_rng(1)
    curvature = jnp.asarray(np.exp(rng.standard_normal((64, 512))), jnp.float32)
    start = jnp.asarray(3 * rng.standard_normal((64, 512)), jnp.float32)
    noise = jnp.asarray(0.3 * rng.standard_normal((200, 64, 512)), jnp.float32)

    def end(tx: optax.GradientTransformation) -> Any:
        def step(carry: Any, e: Any) -> Any:
            p, state = carry
            updates, state = tx.update(curvature * p + e, state, p)
            return (optax.apply_updates(p, updates), state), None

        return jax.jit(lambda p: jax.lax.scan(step, (p, tx.init(p)), noise)[0][0])(start)

    exact, ours = end(optax.adamw(2e-2)), end(compress(optax.adamw(2e-2)))
    return float(jnp.sqrt(jnp.mean((exact - ours) ** 2) / jnp.mean((exact - start) ** 2)))


def errors() -> dict[str, float]:
    """Median relative error of codes to the nearest, of scales that spread by e² in a block."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((256, 256)) * np.exp(2 * rng.standard_normal((256, 256)))
    top = np.abs(x).max(-1, keepdims=True)
    found = {"int8": np.round(x / top * 127) * top / 127}
    for name, codec, y in (("fp8", fp8(), x), ("fp8_positive", fp8_positive(), x * x)):
        wide = jnp.asarray(y, jnp.float32)
        coded = np.asarray(codec.decode(codec.encode(wide, block=256), block=256), np.float64)
        found[name] = coded if name == "fp8" else np.sign(x) * np.sqrt(coded)
    return {k: float(np.median(np.abs(v - x) / np.abs(x))) for k, v in found.items()}


def main() -> None:
    cases = {
        "ours": Case(compress(optax.adamw(1e-3))),
        "peer": Case(optax.adamw(1e-3)),
        "again": Case(optax.adamw(1e-3)),
    }
    found = rounds({name: case.step for name, case in cases.items()}, repeats=9)
    ours, peer = cases["ours"], cases["peer"]
    report(
        "adamw in fp8",
        metric="cpu_s",
        unit="s",
        values=found["ours"],
        peer=PEER,
        peer_values=found["peer"],
        peer_again=found["again"],
        compile_s=ours.compile.cpu_s,
        peer_compile_s=peer.compile.cpu_s,
        state_bytes_a_parameter=ours.bytes_a_parameter(),
        peer_state_bytes_a_parameter=peer.bytes_a_parameter(),
        temporary_over_largest_leaf=ours.temporary(),
        peer_temporary_over_largest_leaf=peer.temporary(),
        distance_over_travelled=distance(),
        median_relative_errors=errors(),
    )


if __name__ == "__main__":
    main()

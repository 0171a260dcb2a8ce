# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Drawing tokens from V = 151,936 logits: ours by thresholds, and as other samplers do.

"sort" sorts each row, as transformers does for top-p; "lax.top_k" draws among the 50 largest: all
that top_k = 50 needs, and of no use without a bound on k. The options are the same, and the tokens
that may be drawn are compared first; the noise is each one's own. One value is the CPU time of all
threads for one call.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels.sampling.api import sample, warp_logits
from measure import cost, report, rounds

V, K, P = 151_936, 50, 0.9


def by_sort(z: jax.Array, keys: jax.Array, k: int | None, p: float | None) -> jax.Array:
    """The kept logits, in descending order, and where they were; then a draw."""
    kept, order = sorted_logits(z, k, p)
    return pick(kept, order, keys)


def sorted_logits(z: jax.Array, k: int | None, p: float | None) -> tuple[jax.Array, jax.Array]:
    order = jnp.argsort(z, axis=1, descending=True)
    return cut(jnp.take_along_axis(z, order, axis=1), k, p), order


def by_top_k(z: jax.Array, keys: jax.Array, k: int, p: float | None) -> jax.Array:
    values, order = jax.lax.top_k(z, k)
    return pick(cut(values, None, p), order, keys)


def cut(values: jax.Array, k: int | None, p: float | None) -> jax.Array:
    """Descending logits with -inf after the first k, and after those that reach p."""
    if k is not None:
        values = jnp.where(jnp.arange(values.shape[1]) < k, values, -jnp.inf)
    if p is not None:
        before = jnp.cumsum(jax.nn.softmax(values, axis=1), axis=1)
        before = jnp.pad(before[:, :-1], ((0, 0), (1, 0)))
        values = jnp.where(before < p, values, -jnp.inf)
    return values


def pick(values: jax.Array, order: jax.Array, keys: jax.Array) -> jax.Array:
    chosen = jax.vmap(jax.random.categorical)(keys, values)
    return jnp.take_along_axis(order, chosen[:, None], axis=1)[:, 0]


def check(z: jax.Array, k: int | None, p: float | None) -> None:
    """The same tokens are kept, but for equal ones, and an edge where sums of floats may differ."""
    values, order = jax.jit(sorted_logits, static_argnums=(1, 2))(z, k, p)
    found = np.asarray(jax.jit(warp_logits)(z, top_k=k or 0, top_p=p or 1.0)) > -np.inf
    for row, left, places in zip(
        found, np.asarray(values) > -np.inf, np.asarray(order), strict=True
    ):
        theirs = np.zeros(V, bool)
        theirs[places[left]] = True
        if np.sum(theirs != row) > max(2, 1e-3 * theirs.sum()):
            raise SystemExit(f"other tokens are kept for k={k}, p={p}")


def measure(batch: int, k: int | None, p: float | None) -> None:
    z = jax.random.normal(jax.random.key(0), (batch, V)) * 3
    keys = jax.random.split(jax.random.key(1), batch)
    check(z, k, p)
    draws = {
        "ours": lambda z, keys: sample(z, keys=keys, top_k=k, top_p=p),
        "sort": functools.partial(by_sort, k=k, p=p),
    }
    if k is not None:
        draws["lax.top_k"] = functools.partial(by_top_k, k=k, p=p)
    cases = {}
    for name, draw in draws.items():
        program = jax.jit(draw).lower(z, keys).compile()
        call = functools.partial(lambda run: jax.block_until_ready(run(z, keys)), program)
        cases[name] = functools.partial(cost, call)
    cases |= {f"{name} again": cases[name] for name in draws if name != "ours"}
    found = rounds(cases, repeats=9)
    for peer in (name for name in draws if name != "ours"):
        report(
            f"B={batch} V={V} top_k={k} top_p={p}, against {peer}",
            metric="cpu_ms",
            unit="ms",
            values=[1e3 * one.cpu_s for one in found["ours"]],
            peer=f"jax, {peer}",
            peer_values=[1e3 * one.cpu_s for one in found[peer]],
            peer_again=[1e3 * one.cpu_s for one in found[f"{peer} again"]],
        )


if __name__ == "__main__":
    for rows in (1, 32):
        for options in ((None, None), (K, None), (None, P), (K, P)):
            measure(rows, *options)

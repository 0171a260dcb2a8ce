# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A step of an engine from V = 151,936 logits: adjusted logits, draws and log-probabilities.

Draws are ours by thresholds, and as other samplers do.

"sort" sorts each row, as transformers does for top-p; "lax.top_k" draws among the 50 largest: all
that top_k = 50 needs, and of no use without a bound on k. The options are the same, and the tokens
that may be drawn are compared first; the noise is each one's own.

Adjusted logits have a mask in bits and three penalties. The peer is the formula in jnp, with the
mask unpacked by indices: "compiled" as a whole, or "eager", operation by operation against one
eager call of ours. Log-probabilities are those of a token and of the 5 likeliest, against
`jax.nn.log_softmax` of all tokens and `lax.top_k`.

One value is the CPU time of all threads for one call.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels import adjust_logits, sample, token_logprobs, warp_logits
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
    compare(f"B={batch} V={V} top_k={k} top_p={p}", draws, (z, keys))


def compare(
    case: str, calls: Mapping[str, Callable[..., Any]], arrays: Sequence[Any], eager: bool = False
) -> None:
    """Reports the cost of "ours" against each other call."""
    cases = {}
    for name, call in calls.items():
        program = call if eager else jax.jit(call).lower(*arrays).compile()
        run = functools.partial(lambda run: jax.block_until_ready(run(*arrays)), program)
        cases[name] = functools.partial(cost, run)
    cases |= {f"{name} again": cases[name] for name in calls if name != "ours"}
    found = rounds(cases, repeats=9)
    for peer in (name for name in calls if name != "ours"):
        report(
            f"{case}, against {peer}",
            metric="cpu_ms",
            unit="ms",
            values=[1e3 * one.cpu_s for one in found["ours"]],
            peer=f"jax, {peer}",
            peer_values=[1e3 * one.cpu_s for one in found[peer]],
            peer_again=[1e3 * one.cpu_s for one in found[f"{peer} again"]],
        )


def adjusted_plainly(z, words, prompt, counts, repetition, frequency, presence):
    """`adjust_logits` as its formula."""
    token = jnp.arange(V)
    z = jnp.where((words[:, token // 32] >> (token % 32)) & 1 == 1, z, -jnp.inf)
    repetition = repetition[:, None]
    z = jnp.where(prompt | (counts > 0), jnp.where(z > 0, z / repetition, z * repetition), z)
    return z - frequency[:, None] * counts - presence[:, None] * (counts > 0)


def adjusted(z, words, prompt, counts, repetition, frequency, presence):
    return adjust_logits(
        z,
        allowed=words,
        prompt_mask=prompt,
        output_counts=counts,
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
    )


def measure_adjusted(batch: int) -> None:
    rng = np.random.default_rng(0)
    z = jax.random.normal(jax.random.key(0), (batch, V)) * 3
    words = jnp.asarray(rng.integers(-(2**31), 2**31, (batch, V // 32)), jnp.int32)
    prompt = jnp.asarray(rng.random((batch, V)) < 0.01)
    counts = jnp.asarray(
        rng.integers(0, 4, (batch, V)) * (rng.random((batch, V)) < 0.01), jnp.int32
    )
    penalties = (jnp.linspace(low, 1.5, batch) for low in (1.0, 0.0, 0.0))
    arrays = z, words, prompt, counts, *penalties
    np.testing.assert_allclose(adjusted(*arrays), adjusted_plainly(*arrays), rtol=1e-5, atol=1e-5)
    name = f"adjust_logits, bits and penalties, B={batch} V={V}"
    compare(name, {"ours": adjusted, "jnp compiled": adjusted_plainly}, arrays)
    compare(name, {"ours": adjusted, "jnp eager": adjusted_plainly}, arrays, eager=True)


def measure_logprobs(batch: int) -> None:
    z = jax.random.normal(jax.random.key(0), (batch, V)) * 3
    tokens = jnp.arange(batch, dtype=jnp.int32)

    def ours(z: jax.Array, tokens: jax.Array) -> tuple[jax.Array, ...]:
        return token_logprobs(z, tokens, k=5)

    def plainly(z: jax.Array, tokens: jax.Array) -> tuple[jax.Array, ...]:
        logps = jax.nn.log_softmax(z)
        chosen = jnp.take_along_axis(logps, tokens[:, None], axis=1)
        values, ids = jax.lax.top_k(logps, 5)
        return chosen[:, 0], 1 + jnp.sum(logps > chosen, axis=1), ids, values

    for a, b in zip(ours(z, tokens), plainly(z, tokens), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    compare(
        f"token_logprobs, k=5, B={batch} V={V}", {"ours": ours, "log_softmax": plainly}, (z, tokens)
    )


if __name__ == "__main__":
    for rows in (1, 32):
        for options in ((None, None), (K, None), (None, P), (K, P)):
            measure(rows, *options)
        measure_adjusted(rows)
        measure_logprobs(rows)

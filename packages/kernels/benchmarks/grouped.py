# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The grouped product against `jax.lax.ragged_dot`, and permuting tokens against a plain layer.

Each value is the CPU time, over all threads, of one call that waits for its results; the wall time
and the bytes that XLA allocates for temporaries stand beside it. Sizes are uneven, as a router's.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels.grouped.api import grouped_matmul
from dovetail_kernels.grouped.permutation import permute, unpermute
from measure import cost, report, rounds

# (experts, rows, D, F, dtype); the first two are the bars.
CASES = [
    (8, 4096, 512, 1024, "float32"),
    (64, 4096, 512, 1024, "float32"),
    (8, 4096, 512, 1024, "bfloat16"),
    (8, 16, 512, 1024, "float32"),
]
TOKENS, CHOICES = 2048, 2


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    def both(x: Any, w: Any, sizes: Any, g: Any) -> Any:
        out, pull = jax.vjp(lambda x, w: function(x, w, sizes), x, w)
        return out, pull(g)

    return both


def compiled(function: Callable[..., Any], *args: Any) -> tuple[Callable[..., Any], int, float]:
    """(the program, its temporary bytes, seconds to compile)"""
    begin = time.perf_counter()
    program = jax.jit(function).lower(*args).compile()
    seconds = time.perf_counter() - begin
    temporary = program.memory_analysis().temp_size_in_bytes
    return program, temporary, seconds


def compare(
    case: str,
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    *args: Any,
    repeats: int = 7,
) -> None:
    mine, temporary, seconds = compiled(ours, *args)
    peer, peer_temporary, _ = compiled(theirs, *args)
    got, expected = mine(*args), peer(*args)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        one, other = (np.asarray(a, np.float32) for a in (one, other))
        # In bfloat16 both round; in float32 sums of up to 1024 terms differ in order.
        if abs(one - other).max() > 2e-2 * abs(other).max():
            raise SystemExit(f"{case}: the results differ by {abs(one - other).max()}")
    programs = {"ours": mine, "theirs": peer, "again": peer}
    calls = {
        name: lambda program=program: cost(lambda: jax.block_until_ready(program(*args)))
        for name, program in programs.items()
    }
    found = rounds(calls, repeats=repeats)
    report(
        case,
        metric="cpu_s",
        unit="s",
        values=[one.cpu_s for one in found["ours"]],
        peer="jax",
        peer_values=[one.cpu_s for one in found["theirs"]],
        peer_again=[one.cpu_s for one in found["again"]],
        compile_s=seconds,
        wall_s=float(np.median([one.wall_s for one in found["ours"]])),
        peer_wall_s=float(np.median([one.wall_s for one in found["theirs"]])),
        temporary_bytes=temporary,
        peer_temporary_bytes=peer_temporary,
    )


def products() -> None:
    for count, rows, inner, outer, dtype in CASES:
        rng = np.random.default_rng(0)
        shapes = ((rows, inner), (count, inner, outer), (rows, outer))
        x, w, g = (
            jnp.asarray(rng.standard_normal(s, np.float32).astype(jnp.dtype(dtype))) for s in shapes
        )
        share = rng.dirichlet(np.full(count, 4.0))
        sizes = jnp.asarray(rng.multinomial(rows, share), jnp.int32)
        name = f"{dtype} [{rows}, {inner}] by {count} of [{inner}, {outer}]"
        repeats = 7 if count < 64 else 3  # the peer takes minutes
        pair = (grouped_matmul, jax.lax.ragged_dot)
        compare(f"grouped_matmul, {name}", *pair, x, w, sizes, repeats=repeats)
        both = [with_gradients(f) for f in pair]
        compare(f"grouped_matmul with gradients, {name}", *both, x, w, sizes, g, repeats=repeats)


def plain_layer(x: Any, experts: Any, weights: Any, *, count: int) -> Any:
    """Rows out and back with JAX's own gradients: those of gathers are scatters."""
    flat = experts.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    rows = x[order // CHOICES] * 2
    back = rows[jnp.argsort(order)].reshape(len(x), CHOICES, -1)
    mixed = jnp.einsum("nkd,nk->nd", back.astype(jnp.float32), weights)
    return mixed.astype(x.dtype), jnp.bincount(flat, length=count)


def our_layer(x: Any, experts: Any, weights: Any, *, count: int) -> Any:
    rows, sizes, plan = permute(x, experts, count=count)
    return unpermute(rows * 2, plan, weights), sizes


def there_and_back() -> None:
    for dtype in ("float32", "bfloat16"):
        rng = np.random.default_rng(0)
        x, g = jnp.asarray(rng.standard_normal((2, TOKENS, 1024), np.float32), dtype)
        chosen = np.argsort(rng.random((TOKENS, 8)), axis=-1)[:, :CHOICES]
        weights = jnp.asarray(rng.random((TOKENS, CHOICES), np.float32))

        def both(layer: Any, x: Any, experts: Any, weights: Any, g: Any) -> Any:
            out, pull, _ = jax.vjp(lambda *a: layer(a[0], experts, a[1]), x, weights, has_aux=True)
            return out, pull(g)

        layers = [functools.partial(layer, count=8) for layer in (our_layer, plain_layer)]
        compare(
            f"permute and unpermute with gradients, {dtype} [{TOKENS}, 1024], k={CHOICES}",
            *(functools.partial(both, layer) for layer in layers),
            *(x, jnp.asarray(chosen, jnp.int32), weights, g),
        )


if __name__ == "__main__":
    products()
    there_and_back()

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Paged attention on requests of unequal lengths, against contiguous keys and jax.nn.

Peers: "copied" gathers every request's pages into contiguous keys, as long as the table is wide,
and calls jax.nn.dot_product_attention with the lengths; "dense" is that call alone, on a cache that
is contiguous and padded already, which holds no more requests than fit at full length. "read" sums
what each request has, once: the limit of a decoding step. Codes are compared with float32 pages,
latent attention with a copy of the latents and jax.nn. The last cases write tokens, against
`jnp.ndarray.at` in one scatter. Values are CPU time over all threads; wall time, temporary bytes
and bytes of keys read stand beside them.
"""

import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels import QuantizedPages
from dovetail_kernels.paged.api import paged_attention
from dovetail_kernels.paged.write import paged_write
from measure import cost, report, rounds

HEADS, KV_HEADS, WIDTH, PAGE, COLUMNS = 32, 8, 128, 16, 256
LATENT, ROTARY = 512, 64  # DeepSeek-V2's, with 16 heads as its small model has


def batch(counts: Sequence[int], lengths: Sequence[int], dtype: Any) -> tuple[Any, ...]:
    """q, pages in random order, and the numbers of such a batch."""
    rng = np.random.default_rng(0)
    needed = -(-np.array(lengths) // PAGE)
    order = rng.permutation(needed.sum())
    table = np.zeros((len(lengths), COLUMNS), np.int32)
    for r, ids in enumerate(np.split(order, np.cumsum(needed)[:-1])):
        table[r, : len(ids)] = ids
    keys = jax.random.split(jax.random.key(0))
    q = jax.random.normal(keys[0], (sum(counts), HEADS, WIDTH), dtype)
    pages = jax.random.normal(keys[1], (len(order), 2, PAGE, KV_HEADS, WIDTH), dtype)
    starts = jnp.asarray(np.concatenate([[0], np.cumsum(counts)]), jnp.int32)
    return q, pages, jnp.asarray(table), jnp.asarray(lengths, jnp.int32), starts


def ours(q: Any, pages: Any, table: Any, lengths: Any, starts: Any, **options: Any) -> Any:
    numbers = {"page_table": table, "kv_lengths": lengths, "q_starts": starts}
    return paged_attention(q, pages, **numbers, **options)


def contiguous(pages: Any, table: Any) -> Any:
    return pages[table].swapaxes(1, 2).reshape(len(table), 2, COLUMNS * PAGE, KV_HEADS, WIDTH)


def dense(q: Any, cache: Any, lengths: Any, *, counts: Sequence[int]) -> Any:
    """Rows padded to the longest of a request, one rectangle of scores."""
    longest, starts = max(counts), np.cumsum([0, *counts])
    place = np.arange(longest)
    rows = np.minimum(starts[:-1, None] + place, len(q) - 1)
    positions = (lengths - np.array(counts))[:, None] + place
    mask = jnp.arange(cache.shape[2]) <= positions[..., None]
    out = jax.nn.dot_product_attention(q[rows], cache[:, 0], cache[:, 1], mask=mask[:, None])
    real = place < np.array(counts)[:, None]
    return out.reshape(-1, HEADS, WIDTH)[np.flatnonzero(real)]


def copied(q: Any, pages: Any, table: Any, lengths: Any, *, counts: Sequence[int]) -> Any:
    return dense(q, contiguous(pages, table), lengths, counts=counts)


def read(pages: Any) -> Any:
    return jnp.sum(pages.astype(jnp.float32), axis=(0, 2))


def timed(program: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
    return lambda: cost(lambda: jax.block_until_ready(program(*args)))


def attention(case: str, counts: Sequence[int], lengths: Sequence[int], dtype: Any) -> None:
    q, pages, table, numbers, starts = batch(counts, lengths, dtype)
    cache = contiguous(pages, table)
    calls: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "ours": (ours, (q, pages, table, numbers, starts)),
        "copied": (functools.partial(copied, counts=counts), (q, pages, table, numbers)),
        "dense": (functools.partial(dense, counts=counts), (q, cache, numbers)),
        "read": (read, (pages,)),
    }
    programs = {name: jax.jit(f).lower(*args).compile() for name, (f, args) in calls.items()}
    results = {name: programs[name](*args) for name, (_, args) in calls.items()}
    for name in ("copied", "dense"):
        np.testing.assert_allclose(
            np.asarray(results["ours"], np.float32),
            np.asarray(results[name], np.float32),
            rtol=0,
            atol=4 * float(jnp.finfo(dtype).eps) * 5,  # values below 5; peers round the weights
        )
    runs = {name: timed(programs[name], args) for name, (_, args) in calls.items()}
    runs["copied again"] = runs["copied"]
    found = rounds(runs, repeats=5)
    temp = {name: one.memory_analysis().temp_size_in_bytes for name, one in programs.items()}
    wall = {name: statistics.median(one.wall_s for one in costs) for name, costs in found.items()}
    cpu = {name: [one.cpu_s for one in costs] for name, costs in found.items()}
    for peer in ("copied", "dense", "read"):
        report(
            f"{case} {jnp.dtype(dtype).name} / {peer}",
            metric="cpu_s",
            unit="s",
            values=cpu["ours"],
            peer="jax",
            peer_values=cpu[peer],
            peer_again=cpu["copied again"] if peer == "copied" else None,
            wall_s=wall["ours"],
            peer_wall_s=wall[peer],
            temp_bytes=temp["ours"],
            peer_temp_bytes=temp[peer],
            kv_bytes=sum(lengths) * 2 * KV_HEADS * WIDTH * jnp.dtype(dtype).itemsize,
            peer_kv_bytes=pages.nbytes if peer == "read" else cache.nbytes,
        )


def copied_latent(q: Any, pages: Any, table: Any, lengths: Any) -> Any:
    keys = pages[table].reshape(len(table), -1, 1, pages.shape[-1])
    scale = q.shape[-1] ** -0.5
    # jax.nn takes values as wide as the keys.
    out = jax.nn.dot_product_attention(
        q[:, None], keys, keys, key_value_seq_lengths=lengths, scale=scale
    )
    return out[:, 0, :, :LATENT]


def variants(requests: int, lengths: Sequence[int]) -> None:
    """Decoding over codes, against float32 pages; and over latents, against a copy and jax.nn."""
    q, pages, table, numbers, starts = batch([1] * requests, lengths, jnp.float32)
    slots = jnp.arange(pages.shape[0] * PAGE)
    k, v = (pages[:, i].reshape(-1, KV_HEADS, WIDTH) for i in (0, 1))
    for dtype in ("int8", "float8_e4m3fn"):
        codes = paged_write(QuantizedPages.zeros(pages.shape, dtype), k, v, slots=slots)
        size = codes.codes.nbytes + codes.scales.nbytes
        compared(
            f"decode {requests} {dtype} / float32 pages",
            (ours, (q, codes, table, numbers, starts)),
            (ours, (q, pages, table, numbers, starts)),
            atol={"int8": 0.1, "float8_e4m3fn": 0.3}[dtype],  # codes of values below 5
            kv_bytes=size,
            peer_kv_bytes=pages.nbytes,
        )
    keys = jax.random.split(jax.random.key(2))
    latents = jax.random.normal(keys[0], (len(pages), 1, PAGE, 1, LATENT + ROTARY))
    q = jax.random.normal(keys[1], (requests, 16, LATENT + ROTARY))
    compared(
        f"decode {requests} latent / copied",
        (functools.partial(ours, value_width=LATENT), (q, latents, table, numbers, starts)),
        (copied_latent, (q, latents, table, numbers)),
        atol=1e-4,
        kv_bytes=latents.nbytes,
    )


def compared(case: str, one: Any, other: Any, *, atol: float, **conditions: Any) -> None:
    """Reports the CPU time of one call over that of another."""
    calls = {"ours": one, "peer": other}
    programs = {name: jax.jit(f).lower(*args).compile() for name, (f, args) in calls.items()}
    results = {name: programs[name](*args) for name, (_, args) in calls.items()}
    np.testing.assert_allclose(results["ours"], results["peer"], rtol=0, atol=atol)
    runs = {name: timed(programs[name], args) for name, (_, args) in calls.items()}
    runs["again"] = runs["peer"]
    found = rounds(runs, repeats=7)
    cpu = {name: [cost.cpu_s for cost in costs] for name, costs in found.items()}
    report(
        case,
        metric="cpu_s",
        unit="s",
        values=cpu["ours"],
        peer="jax",
        peer_values=cpu["peer"],
        peer_again=cpu["again"],
        temp_bytes=programs["ours"].memory_analysis().temp_size_in_bytes,
        peer_temp_bytes=programs["peer"].memory_analysis().temp_size_in_bytes,
        **conditions,
    )


def scatter(pages: Any, k: Any, v: Any, *, slots: Any) -> Any:
    page = jnp.where(slots < 0, len(pages), slots // PAGE)
    rows = jnp.stack([k, v], axis=1)
    return pages.at[page, :, slots % PAGE].set(rows, mode="drop")


def writing(tokens: int, dtype: Any) -> None:
    """Into a cache of 4096 pages, donated, as an engine does once for each layer."""
    k = jax.random.normal(jax.random.key(0), (tokens, KV_HEADS, WIDTH), dtype)
    slots = jnp.asarray(np.random.default_rng(0).permutation(4096 * PAGE)[:tokens], jnp.int32)
    caches, programs, runs = {}, {}, {}
    for name, function in {"ours": paged_write, "peer": scatter, "again": scatter}.items():
        caches[name] = jnp.zeros((4096, 2, PAGE, KV_HEADS, WIDTH), dtype)
        lowered = jax.jit(function, donate_argnums=0).lower(caches[name], k, -k, slots=slots)
        programs[name] = lowered.compile()

        def step(name: str = name) -> None:
            caches[name] = programs[name](caches[name], k, -k, slots=slots).block_until_ready()

        runs[name] = lambda step=step: cost(step)
    found = rounds(runs, repeats=9)
    np.testing.assert_array_equal(caches["ours"], caches["peer"])
    report(
        f"write {tokens} tokens {jnp.dtype(dtype).name}",
        metric="wall_s",
        unit="s",
        values=[one.wall_s for one in found["ours"]],
        peer="jax",
        peer_values=[one.wall_s for one in found["peer"]],
        peer_again=[one.wall_s for one in found["again"]],
        temp_bytes=programs["ours"].memory_analysis().temp_size_in_bytes,
        peer_temp_bytes=programs["peer"].memory_analysis().temp_size_in_bytes,
        cache_bytes=caches["ours"].nbytes,
    )


def main() -> None:
    lengths = np.random.default_rng(1).integers(100, 4000, 32).tolist()
    for requests in (1, 8):
        variants(requests, lengths[:requests])
    for dtype in (jnp.float32, jnp.bfloat16):
        for requests in (1, 8, 32):
            attention(f"decode {requests}", [1] * requests, lengths[:requests], dtype)
        attention("prefill 512 of 2048", [512], [2048], dtype)
        attention("prefill 256, decode 7", [256] + [1] * 7, [1024, *lengths[:7]], dtype)
        for tokens in (8, 512):
            writing(tokens, dtype)


if __name__ == "__main__":
    main()

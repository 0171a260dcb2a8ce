# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`attention` with its gradients against jax.nn, and Tokamax and torch where they are installed.

Each value is the CPU time, over all threads, of one call that waits for its results; a second line
gives the wall. Temporary bytes are XLA's own account. The packed case gives jax.nn the dense mask
that it needs; Tokamax's chunked XLA has no segments. Results are compared before anything is timed.

One query per row is measured too, forward alone, against a cache of keys with and without lengths.
"""

import importlib.util
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels import attention
from measure import cost, report, rounds

REPEATS = 7
SHAPE = (1, 2048, 8, 64)
DOCUMENTS = 8
# Batch, keys, kv heads, width.
DECODE = [
    (batch, keys, kv_heads, width)
    for batch in (1, 8)
    for keys in (512, 2048)
    for kv_heads, width in ((8, 64), (2, 128))
]
DECODED = 5


def jax_nn(q: Any, k: Any, v: Any, *, segment_ids: Any = None) -> Any:
    mask = None
    if segment_ids is not None:
        mask = (segment_ids[:, :, None] == segment_ids[:, None, :])[:, None]
    with jax.numpy_dtype_promotion("standard"):
        return jax.nn.dot_product_attention(q, k, v, mask=mask, is_causal=True)


def ours(q: Any, k: Any, v: Any, *, segment_ids: Any = None) -> Any:
    return attention(q, k, v, causal=True, segment_ids=segment_ids)


def tokamax(q: Any, k: Any, v: Any) -> Any:
    import tokamax

    return tokamax.dot_product_attention(q, k, v, is_causal=True, implementation="xla_chunked")


def step(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """(out, gradients), given q, k, v and the cotangent of out."""

    def both(q: Any, k: Any, v: Any, g: Any) -> Any:
        out, pull = jax.vjp(lambda *qkv: function(*qkv, **options), q, k, v)
        return out, pull(g)

    return both


def torch_step(arrays: list[jax.Array]) -> Callable[[], Any]:
    """torch's attention for the processor and its backward pass, on the same arrays."""
    import torch

    q, k, v, g = (torch.from_numpy(np.array(a)).transpose(1, 2) for a in arrays)
    for one in (q, k, v):
        one.requires_grad_()

    def run() -> Any:
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        grads = torch.autograd.grad(out, (q, k, v), g)
        return [one.detach().transpose(1, 2).numpy() for one in (out, *grads)]

    return run


def compiled(function: Callable[..., Any], arrays: list[jax.Array]) -> tuple[Any, int, float]:
    """(a call that waits, temporary bytes, seconds to compile)"""
    begin = time.perf_counter()
    program = jax.jit(function).lower(*arrays).compile()
    seconds = time.perf_counter() - begin
    temporary = program.memory_analysis().temp_size_in_bytes
    return lambda: jax.block_until_ready(program(*arrays)), temporary, seconds


def compare(case: str, dtype: str, peers: dict[str, Any], **options: Any) -> None:
    rng = np.random.default_rng(0)
    arrays = [jnp.asarray(rng.standard_normal(SHAPE), dtype) for _ in range(4)]
    mine, temporary, seconds = compiled(step(ours, **options), arrays)
    calls, bytes_of = {"ours": mine}, {}
    for name, peer in peers.items():
        if peer is torch_step:
            calls[name] = torch_step(arrays)
        else:
            calls[name], bytes_of[name], _ = compiled(step(peer, **options), arrays)
        for one, other in zip(jax.tree.leaves(mine()), jax.tree.leaves(calls[name]()), strict=True):
            one, other = (np.asarray(a, np.float32) for a in (one, other))
            error = abs(one - other).max() / abs(other).max()
            # Sums of up to 2048 terms in other orders; in bfloat16 both round what they multiply.
            if error > (1e-4 if dtype == "float32" else 3e-2):
                raise SystemExit(f"{case}: {name} differs by {error}")
    calls["again"] = calls[next(iter(peers))]
    found = rounds({n: (lambda c=c: cost(c)) for n, c in calls.items()}, repeats=REPEATS)
    for name in peers:
        for metric in ("cpu_s", "wall_s"):
            values = {n: [getattr(c, metric) for c in costs] for n, costs in found.items()}
            first = name == next(iter(peers))
            report(
                f"attention with gradients, causal{case}, {dtype} {list(SHAPE)}, against {name}",
                metric=metric,
                unit="s",
                values=values["ours"],
                peer=name.split(".")[0],
                peer_values=values[name],
                peer_again=values["again"] if first else None,
                compile_s=seconds,
                temporary_bytes=temporary,
                peer_temporary_bytes=bytes_of.get(name),
            )


def decode(batch: int, keys: int, kv_heads: int, width: int, lengths: bool) -> None:
    """One query of 8 heads per row against a cache of keys, forward alone."""
    rng = np.random.default_rng(0)
    shapes = (batch, 1, 8, width), *[(batch, keys, kv_heads, width)] * 2
    arrays = [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]
    valid = jnp.asarray(rng.integers(keys // 2, keys + 1, batch), jnp.int32) if lengths else None

    def peer(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, key_value_seq_lengths=valid)

    mine, temporary, seconds = compiled(lambda *x: attention(*x, kv_lengths=valid), arrays)
    theirs, peer_temporary, _ = compiled(peer, arrays)
    error = float(abs(mine() - theirs()).max())
    if error > 1e-5:  # sums of up to 2048 terms that average to less than 1, in other orders
        raise SystemExit(f"decoding differs from jax.nn by {error}")
    # Calls of about a millisecond: many in one measurement.
    calls = {"ours": mine, "jax.nn": theirs, "again": theirs}
    repeated = {n: (lambda c=c: [c() for _ in range(DECODED)]) for n, c in calls.items()}
    found = rounds({n: (lambda c=c: cost(c)) for n, c in repeated.items()}, repeats=REPEATS)
    values = {n: [c.cpu_s / DECODED for c in costs] for n, costs in found.items()}
    report(
        f"attention of one query per row{', lengths' if lengths else ''}, float32 [{batch}, 1, 8, "
        f"{width}], {keys} keys of {kv_heads} heads, against jax.nn",
        metric="cpu_s",
        unit="s",
        values=values["ours"],
        peer="jax",
        peer_values=values["jax.nn"],
        peer_again=values["again"],
        compile_s=seconds,
        temporary_bytes=temporary,
        peer_temporary_bytes=peer_temporary,
    )


def main() -> None:
    others: dict[str, Any] = {}
    if importlib.util.find_spec("tokamax"):
        others["tokamax"] = tokamax
    if importlib.util.find_spec("torch"):
        others["torch"] = torch_step
    for dtype in ("float32", "bfloat16"):
        # torch has no NumPy bfloat16, and Tokamax is compared in the dtype that it is here for.
        compare("", dtype, {"jax.nn": jax_nn, **(others if dtype == "float32" else {})})
    ids = jnp.repeat(jnp.arange(DOCUMENTS), SHAPE[1] // DOCUMENTS)[None]
    compare(f" in {DOCUMENTS} packed documents", "float32", {"jax.nn": jax_nn}, segment_ids=ids)
    for shape in DECODE:
        for lengths in (False, True):
            decode(*shape, lengths)


if __name__ == "__main__":
    main()

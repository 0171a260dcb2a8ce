# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The cross-entropy of a linear head and its gradients by x and w: ours, and how else it is done.

"naive" has all logits in memory; "scan" forms them again, 256 tokens at a time, as trainers do with
`jax.checkpoint`; Tokamax (Python 3.12) and torch (3.11) where they are installed. One value is the
CPU time of all threads for one call. The first figures of a case are its temporary memory by
`memory_analysis`. Tokamax has no V but multiples of its tile here: it counts padded columns.
"""

import functools
import importlib.util
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dovetail_kernels.loss.api import linear_cross_entropy
from measure import cost, report, rounds

M, D, V = 2048, 512, 32768
CHUNK = 256
BUDGET_BYTES = 16 * 2**20
Call = Callable[..., tuple[Any, tuple[Any, Any]]]


def naive(x: jax.Array, w: jax.Array, labels: jax.Array) -> jax.Array:
    z = jnp.dot(x, w, preferred_element_type=jnp.float32)
    at = jnp.take_along_axis(z, labels[:, None], axis=1)[:, 0]
    return jnp.sum(jax.nn.logsumexp(z, axis=1) - at)


def scan(x: jax.Array, w: jax.Array, labels: jax.Array) -> jax.Array:
    def add(total: jax.Array, piece: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return total + jax.checkpoint(naive)(piece[0], w, piece[1]), None

    pieces = (x.reshape(-1, CHUNK, D), labels.reshape(-1, CHUNK))
    return jax.lax.scan(add, jnp.float32(0), pieces)[0]


def ours(x: jax.Array, w: jax.Array, labels: jax.Array, budget: int | None = None) -> jax.Array:
    return linear_cross_entropy(x, w, labels, budget=budget).sum


def tokamaxs(x: jax.Array, w: jax.Array, labels: jax.Array) -> jax.Array:
    import tokamax

    return tokamax.linear_softmax_cross_entropy_loss(x, labels, w, reduction="sum")


def torchs(x: jax.Array, w: jax.Array, labels: jax.Array) -> Callable[[], Any]:
    import torch

    kind = torch.bfloat16 if x.dtype == jnp.bfloat16 else torch.float32
    tx, tw = (torch.tensor(np.asarray(a, np.float32)).to(kind).requires_grad_() for a in (x, w))
    ty = torch.tensor(np.asarray(labels)).long()

    def call() -> Any:
        tx.grad = tw.grad = None
        total = torch.nn.functional.cross_entropy((tx @ tw).float(), ty, reduction="sum")
        total.backward()
        return total.item(), (tx.grad.float().numpy(), tw.grad.float().numpy())

    return call


def compiled(loss: Call, arrays: tuple[jax.Array, ...]) -> tuple[Callable[[], Any], int]:
    """A call that waits, and its temporary bytes."""
    program = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*arrays).compile()
    temp = program.memory_analysis().temp_size_in_bytes
    return lambda: jax.block_until_ready(program(*arrays)), temp


def same(name: str, found: Any, expected: Any, tolerance: float) -> None:
    for got, right in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        right = np.asarray(right, np.float32)
        error = np.max(np.abs(np.asarray(got, np.float32) - right)) / np.max(np.abs(right))
        if not error <= tolerance:
            raise SystemExit(f"{name} differs from naive by {error}")


def measure(dtype: str) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (M, D)).astype(dtype)
    w = (jax.random.normal(keys[1], (D, V)) * D**-0.5).astype(dtype)
    arrays = (x, w, jax.random.randint(keys[2], (M,), 0, V))
    losses = {
        "ours": ours,
        "ours, 16 MiB": functools.partial(ours, budget=BUDGET_BYTES),
        "naive": naive,
        "scan": scan,
    }
    if importlib.util.find_spec("tokamax"):
        losses["tokamax"] = tokamaxs
    cases, temp = {}, {}
    for name, loss in losses.items():
        cases[name], temp[name] = compiled(loss, arrays)
    if importlib.util.find_spec("torch"):
        cases["torch"] = torchs(*arrays)
    expected = cases["naive"]()
    for name, call in cases.items():
        same(name, call(), expected, 2e-2 if dtype == "bfloat16" else 1e-4)
    timed = {name: functools.partial(cost, call) for name, call in cases.items()}
    timed |= {f"{name} again": timed[name] for name in cases if not name.startswith("ours")}
    found = rounds(timed, repeats=7)
    for mine in ("ours", "ours, 16 MiB"):
        for peer in (name for name in cases if not name.startswith("ours")):
            report(
                f"{mine}, {dtype} M={M} D={D} V={V}, against {peer}",
                metric="cpu_s",
                unit="s",
                values=[one.cpu_s for one in found[mine]],
                peer=peer if peer in ("tokamax", "torch") else f"jax, {peer}",
                peer_values=[one.cpu_s for one in found[peer]],
                peer_again=[one.cpu_s for one in found[f"{peer} again"]],
                temp_bytes=temp[mine],
                peer_temp_bytes=temp.get(peer),
                wall_s=statistics.median(one.wall_s for one in found[mine]),
                peer_wall_s=statistics.median(one.wall_s for one in found[peer]),
            )


if __name__ == "__main__":
    for one in ("float32", "bfloat16"):
        measure(one)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One step of each optimizer, update and application, compiled and donated.

The parameters are those of a small decoder of stacked layers. `Step` with its guard is measured
against the same step of Optax without any, and against `optax.apply_if_finite`; Muon against
`optax.contrib.muon` on the same matrices; AdamW against torch's fused one; SOAP's dearest step of
ten, and its median one, against the median. Values are CPU seconds over all threads; bytes of state
and XLA's temporary bytes stand beside them.
"""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dovetail_optim import Guard, Step, muon, soap
from measure import cost, report, rounds

LAYERS, EMBED, HIDDEN = 8, 384, 1024
Call = Callable[[], Any]


def matrices() -> dict[str, jax.Array]:
    """f32 kernels of stacked layers: 12.6 million numbers."""
    sizes = {
        "q": (EMBED, EMBED),
        "o": (EMBED, EMBED),
        "up": (EMBED, HIDDEN),
        "down": (HIDDEN, EMBED),
    }
    rng = np.random.default_rng(0)
    return {
        name: jnp.asarray(rng.normal(size=(LAYERS, *size)) * size[0] ** -0.5, jnp.float32)
        for name, size in sizes.items()
    }


class Candidate:
    """A step of (params, state, grads) that keeps what it returns."""

    def __init__(self, step: Callable[..., Any], state: Any):
        self.params, self.state = matrices(), state
        self.grads = jax.tree.map(lambda p: 0.01 * jnp.flip(p), self.params)
        args = (self.params, self.state, self.grads)
        self.program = jax.jit(step, donate_argnums=(0, 1)).lower(*args).compile()
        self.temp = self.program.memory_analysis().temp_size_in_bytes
        self.bytes = sum(x.nbytes for x in jax.tree.leaves(state))

    def __call__(self) -> None:
        self.params, self.state, *_ = self.program(self.params, self.state, self.grads)
        jax.block_until_ready(self.params)


def bare(tx: optax.GradientTransformation) -> Candidate:
    def step(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return Candidate(step, tx.init(matrices()))


def guarded(tx: optax.GradientTransformation) -> Candidate:
    step = Step(tx, guard=Guard())
    return Candidate(step, step.init(matrices()))


def by_torch() -> Call:
    import torch

    params = [torch.tensor(np.asarray(p)).requires_grad_() for p in matrices().values()]
    for p in params:
        p.grad = 0.01 * p.detach().flip(0)
    return torch.optim.AdamW(params, lr=1e-3, fused=True).step


def compare(case: str, ours: Any, peers: dict[str, Any]) -> None:
    calls = {"ours": ours, **peers}
    timed = {name: functools.partial(cost, call) for name, call in calls.items()}
    found = rounds(timed | {f"{name} again": timed[name] for name in peers}, repeats=15)
    cpu = {name: [one.cpu_s for one in costs] for name, costs in found.items()}
    for name, peer in peers.items():
        report(
            f"{case}, against {name}",
            metric="cpu_s",
            unit="s",
            values=cpu["ours"],
            peer=name.split()[0],
            peer_values=cpu[name],
            peer_again=cpu[f"{name} again"],
            temp_bytes=ours.temp,
            peer_temp_bytes=getattr(peer, "temp", None),
            state_bytes=ours.bytes,
            peer_state_bytes=getattr(peer, "bytes", None),
        )


def turns() -> None:
    """SOAP refreshes a tenth of its bases in each step: is there a dear one among ten?"""
    step = bare(soap(1e-3, matrix="l i o -> l, i, o"))
    for _ in range(3):
        step()
    found = np.array([[cost(step).cpu_s for _ in range(10)] for _ in range(5)])
    by_turn = np.median(found, axis=0)
    report(
        "SOAP, the dearest of ten steps against the median one",
        metric="cpu_s",
        unit="s",
        values=[float(by_turn.max())] * 1,
        peer="the median step",
        peer_values=[float(np.median(by_turn))],
        state_bytes=step.bytes,
        temp_bytes=step.temp,
    )


def main() -> None:
    adamw = optax.adamw(1e-3)
    peers: dict[str, Any] = {
        "optax adamw": bare(adamw),
        "optax apply_if_finite(adamw)": bare(optax.apply_if_finite(adamw, 8)),
    }
    if importlib.util.find_spec("torch"):
        peers["torch fused AdamW"] = by_torch()
    compare("AdamW in a Step with guard", guarded(adamw), peers)
    stacked = "l i o -> l, i, o"
    numbers = optax.contrib.MuonDimensionNumbers(reduction_axis=1, output_axis=2)
    theirs = optax.contrib.muon(
        0.02, muon_weight_dimension_numbers=dict.fromkeys(matrices(), numbers)
    )
    compare(
        "Muon, float32 iterations",
        bare(muon(0.02, matrix=stacked, dtype=jnp.float32)),
        {"optax contrib.muon": bare(theirs)},
    )
    turns()


if __name__ == "__main__":
    main()

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What `Trainer.step` adds to the loop that one would write by hand: split, jit, donate.

The model is all overhead: 12 layers of width 16 make 75 parameters in 227 arrays of state, and
almost no arithmetic, of which the norms of parameters and updates are the largest part: the loop
is written with them, and without. thread: CPU time of the main thread, which on a CPU computes so
small a program itself. wall: until the last result is there.
"""

import time

import jax
import numpy as np
import optax
from flax import nnx

from dovetail_train import Trainer, lm_loss
from dovetail_train.testing import TinyDecoder
from measure import report, rounds

STEPS, REPEATS, DEPTH = 30, 40, 12


def batch():
    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(0, 64, (2, 16), dtype=np.int32) for name in ("tokens", "targets")}
    return arrays | {"mask": np.ones((2, 16), np.float32)}


def model():
    return TinyDecoder(vocab_size=64, width=16, depth=DEPTH, rngs=nnx.Rngs(0))


def by_hand(tx, loss, *, norms):
    """The step and its first state, as a careful user writes them; norms: all three of them."""
    graphdef, params = nnx.split(model())
    params = nnx.to_pure_dict(params)

    def step(state, batch):
        params, opt = state

        def mean(params):
            total, count = loss(nnx.merge(graphdef, params), batch, key=None)
            return total / count

        value, grads = jax.value_and_grad(mean)(params)
        updates, opt = tx.update(grads, opt, params)
        measured = [value, optax.global_norm(grads)]
        if norms:
            measured += [optax.global_norm(params), optax.global_norm(updates)]
        return (optax.apply_updates(params, updates), opt), measured

    return jax.jit(step, donate_argnums=0), (params, tx.init(params))


def timed(step, state, clock):
    """A case: seconds per step on `clock`; the state goes on from call to call."""
    held = [state]

    def case():
        data, state = batch(), held[0]
        start = clock()
        for _ in range(STEPS):
            state, out = step(state, data)
        if clock is time.perf_counter:
            jax.block_until_ready(out)
        seconds = (clock() - start) / STEPS
        held[0] = jax.block_until_ready(state)
        return seconds * 1e6

    return case


def main():
    tx, loss = optax.adamw(1e-3), lm_loss()
    trainer = Trainer(tx, loss)
    state, (step, first) = trainer.init(model()), by_hand(tx, loss, norms=True)
    ours = float(trainer.step(state, batch())[1].scalars["loss"])
    theirs = float(step(first, batch())[1][0])
    if abs(ours - theirs) > 1e-6 * abs(theirs):
        raise SystemExit(f"the losses differ: {ours} and {theirs}")
    for metric, clock in (("thread", time.thread_time), ("wall", time.perf_counter)):
        cases = {"trainer": timed(trainer.step, trainer.init(model()), clock)}
        for name, norms in (("norms", True), ("norms again", True), ("no norms", False)):
            cases[name] = timed(*by_hand(tx, loss, norms=norms), clock)
        values = rounds(cases, repeats=REPEATS)
        for name, what in (("norms", "with all norms"), ("no norms", "with the gradient's norm")):
            report(
                f"Trainer.step against a loop {what}",
                metric=f"{metric}_us",
                unit="us/step",
                values=values["trainer"],
                peer="split + jit by hand",
                peer_values=values[name],
                peer_again=values["norms again"] if name == "norms" else None,
                loss=ours,
            )


if __name__ == "__main__":
    main()

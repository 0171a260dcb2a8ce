# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs whose functions hold a value of their process, on 1, 2 and 4 of them: ranks.py DIR.

Writes, as JSON, the output of process 0 of each launch, and of both processes of refused ones, and
the last step and the state of the hook of process 0.
"""

import json
import socket
import sys
from pathlib import Path

import jax
import optax
from flax import nnx
from several import WIDTH, Batches, Launch, rows_of

from dovetail_checkpoint import Store
from dovetail_train import Eval, Trainer, make_mesh


class Context:
    """The rank of a process, and a path of its own, as a job gives them."""

    def __init__(self, rank):
        self.rank, self.hostname, self.path = rank, f"{socket.gethostname()}-{rank}", f"out.{rank}"


class Guard:
    """Accepts every step."""

    def __init__(self, ctx, *, has_key=False):
        self.ctx, self.has_key = ctx, has_key

    def begin(self):
        return {"key": jax.random.key(0)} if self.has_key else {}

    def judge(self, history, *, grad_norm, loss):
        return grad_norm >= 0, history


class Notes:
    """A hook with a state of its process."""

    every = 1

    def __init__(self, ctx):
        self.lines = [ctx.path]

    def __call__(self, trainer, state, step):
        self.lines.append(str(step))

    def get_state(self):
        return {"lines": self.lines}

    def set_state(self, state):
        self.lines = state["lines"]


def squared(ctx, factor):
    def loss(model, batch, *, key):
        if ctx.rank < 0:
            raise ValueError(ctx.hostname)
        error = (model(batch["x"]) - batch["y"]) ** 2
        return factor * (batch["mask"] * error).sum(), batch["mask"].sum()

    return loss


def named(ctx, loss):
    """Returns the loss as it is on rank 0, and under another name elsewhere."""

    def silent(model, batch, *, key):
        return loss(model, batch, key=key)

    return silent if ctx.rank else loss


def noted(ctx, tx):
    def update(updates, state, params=None, **extra):
        assert ctx.rank >= 0, ctx.hostname
        return tx.update(updates, state, params)

    return optax.GradientTransformation(tx.init, update)


def kept(ctx):
    def after_update(model):
        assert ctx.path

    return after_update


def adam(rank):
    return optax.adam(0.1)


def fit(root, me, count, *, steps, changed=False, seed=lambda rank: 0, tx=adam):
    ctx = Context(me)
    loss, metric = named(ctx, squared(ctx, 0.25 if changed else 0.5)), squared(ctx, 1.0)
    hooks = [Eval([rows_of(99, me, count)], every=1, metrics={"error": metric}), Notes(ctx)]
    trainer = Trainer(
        noted(ctx, tx(me)),
        loss,
        mesh=make_mesh(data=4),
        guard=Guard(ctx, has_key=changed),
        after_update=kept(ctx),
        seed=seed(me),
    )
    with Store(root) as store:
        result = trainer.fit(
            nnx.Linear(WIDTH, 2, rngs=nnx.Rngs(0)), Batches(me, count),
            steps=steps, store=store, resume="convert",
            hooks=[hooks, hooks[:1], [*hooks, Notes(ctx)], hooks][me],
        )  # fmt: skip
    Path(f"{root}.lines_{steps}_{me}").write_text(json.dumps([result.step, *hooks[1].lines]))


def launch(root, count, log, *, codes=(0,), **options):
    """Returns the output of each process of one launch."""
    started = Launch(
        lambda me, count: fit(root, me, count, **options), count=count, log=f"{root}.{log}"
    )
    ended = started.wait()
    outputs = [started.output(me) for me in range(count)]
    assert set(ended) <= set(codes), "\n".join([str(ended), *(text[-3000:] for text in outputs)])
    return outputs


def main():
    root = Path(sys.argv[1])
    up, down = root / "up", root / "down"
    result = {
        "one": launch(up, 1, 1, steps=1)[0],
        "one to two": launch(up, 2, 2, steps=2)[0],
        "two": launch(down, 2, 1, steps=1)[0],
        "two to one": launch(down, 1, 2, steps=2)[0],
        "one to four": launch(down, 4, 3, steps=3)[0],
        "changed": launch(down, 2, 4, steps=4, changed=True)[0],
        "seeds": launch(down, 2, 5, codes=(1,), steps=5, seed=lambda rank: rank),
        "optimizers": launch(
            down, 2, 6, codes=(1,), steps=5,
            tx=lambda rank: optax.adam(0.1) if rank else optax.sgd(0.1),
        ),
    }  # fmt: skip
    for run, steps in ((up, 2), (down, 4)):
        result[run.name] = json.loads(Path(f"{run}.lines_{steps}_0").read_text())
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()

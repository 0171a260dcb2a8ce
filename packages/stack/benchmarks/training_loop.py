# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a run costs around its steps: `Trainer.fit` on packed text from disk, with guard and log,
against the same step on one batch that lies on the device, without its guard and with it.

A Llama of 5 M parameters, 8 rows of 256 tokens. The steps between two calls of a hook are timed,
which waits for results; compilation comes before the first of them. again: the bare step once more.
"""

import json
import tempfile
import time
from itertools import islice
from pathlib import Path

import jax
import optax

from dovetail_data import Bytes, Text, batches, pack, text, write
from dovetail_kernels import attention
from dovetail_models import init, llama
from dovetail_optim import Guard
from dovetail_train import Jsonl, Trainer, lm_loss
from measure import Cost, cost, report, rounds

ROWS, LENGTH, STEPS, WARM, REPEATS = 8, 256, 8, 2, 7
CONFIG = llama(vocab_size=4096, embed=256, depth=6, heads=8, kv_heads=4, mlp=704, tie=True)


def make_trainer(guard):
    """Without a guard no step is refused either."""
    loss = lm_loss(attention=attention)
    return Trainer(optax.adamw(1e-4), loss, guard=guard, max_skips=10 if guard else 0)


class Timed:
    """A hook: what passed between its first call, after WARM steps, and a later one."""

    every = WARM

    def __call__(self, trainer, state, step):
        now = time.perf_counter(), time.process_time()
        if step == WARM:
            self.start = now
        if step == WARM + STEPS:
            wall, cpu = (b - a for a, b in zip(self.start, now, strict=True))
            self.cost = Cost(wall_s=wall, cpu_s=cpu)
        return {}


def loop(trainer, rows, directory):
    """A case: STEPS steps of a run, with all that belongs to one but checkpoints."""

    def case():
        timed = Timed()
        data = batches(rows, global_batch=ROWS, seed=0, threads=1)
        log = Jsonl(directory / "metrics.jsonl")
        model = init(CONFIG, seed=0)
        trainer.fit(model, data, steps=WARM + STEPS, sinks=[log], hooks=[timed])
        data.close()
        return timed.cost

    return case


def bare(trainer, rows):
    """A case: STEPS steps on one batch, dispatched one after the other."""
    data = batches(rows, global_batch=ROWS, seed=0)
    batch = trainer.place(*islice(data, 1))
    data.close()
    held = [trainer.init(init(CONFIG, seed=0))]

    def steps():
        state = held[0]
        for _ in range(STEPS):
            state, metrics = trainer.step(state, batch)
        held[0] = jax.block_until_ready(state)
        jax.block_until_ready(metrics)

    return lambda: cost(steps)


def main():
    files = sorted(Path(json.__file__).parent.parent.glob("*.py"))
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        corpus = write(text(files), directory / "corpus", encoder=Text(Bytes()))
        rows = pack(corpus, length=LENGTH)
        step = bare(make_trainer(None), rows)
        guarded = make_trainer(Guard())
        cases = {"fit": loop(guarded, rows, directory), "guarded": bare(guarded, rows)}
        cases |= {"bare": step, "again": step}
        found = rounds(cases, repeats=REPEATS)
    for metric in ("wall_s", "cpu_s"):
        per_step = {who: [getattr(c, metric) / STEPS for c in cs] for who, cs in found.items()}
        for peer, what in (("bare", "the bare step"), ("guarded", "the guarded step")):
            report(
                f"a run's step with data, guard and log, Llama 5M {ROWS}x{LENGTH}, against {what}",
                metric=metric,
                unit="s/step",
                values=per_step["fit"],
                peer=what,
                peer_values=per_step[peer],
                peer_again=per_step["again"] if peer == "bare" else None,
            )


if __name__ == "__main__":
    main()

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One training step with the operations of dovetail-kernels against the same step without them.

The same trainer, model and batch: `lm_loss()` against `lm_loss(attention=, cross_entropy=)`; for
a mixture of experts also `configure(ragged_dot=)`. The losses of the first steps are compared
before anything is timed.
"""

import jax
import numpy as np
import optax

from dovetail_kernels import attention, grouped_matmul, linear_cross_entropy
from dovetail_models import init, llama, qwen3_moe
from dovetail_train import Trainer, lm_loss
from measure import cost, report, rounds

ROWS, LENGTH, REPEATS = 2, 1024, 5
SIZE = {"vocab_size": 16384, "embed": 256, "depth": 4, "heads": 8, "kv_heads": 4, "head_dim": 32}
CONFIGS = {
    "Llama": llama(**SIZE, mlp=704, tie=True),
    "mixture of 8 experts": qwen3_moe(**SIZE, mlp=352, experts=8, top_k=2, tie=True),
}


def batch(vocab_size):
    """Rows of four packed documents each."""
    ids = np.random.default_rng(0).integers(0, vocab_size, (ROWS, LENGTH + 1), np.int32)
    part = LENGTH // 4
    return {
        "tokens": ids[:, :-1],
        "targets": ids[:, 1:],
        "mask": np.ones((ROWS, LENGTH), np.float32),
        "segment_ids": np.broadcast_to(
            np.repeat(np.arange(1, 5, dtype=np.int32), part), (ROWS, LENGTH)
        ),
        "positions": np.broadcast_to(np.tile(np.arange(part, dtype=np.int32), 4), (ROWS, LENGTH)),
    }


class Candidate:
    """A trainer and its state, one step at a time."""

    def __init__(self, config, *, kernels):
        model = init(config, seed=0)
        options = {}
        if kernels:
            model = model.configure(ragged_dot=grouped_matmul)
            options = {"attention": attention, "cross_entropy": linear_cross_entropy}
        self.trainer = Trainer(optax.adamw(1e-3), lm_loss(**options))
        self.state = self.trainer.init(model)
        self.batch = batch(config.vocab_size)

    def step(self):
        self.state, metrics = self.trainer.step(self.state, self.batch)
        jax.block_until_ready(self.state)
        return float(metrics.scalars["loss"])


def main():
    for name, config in CONFIGS.items():
        found = {
            "ours": Candidate(config, kernels=True),
            "plain": Candidate(config, kernels=False),
            "again": Candidate(config, kernels=False),
        }
        losses = {key: [c.step() for _ in range(3)] for key, c in found.items()}
        # float32 in other orders of summation, and two updates of Adam.
        np.testing.assert_allclose(losses["ours"], losses["plain"], rtol=1e-4)
        results = rounds({k: (lambda c=c: cost(c.step)) for k, c in found.items()}, repeats=REPEATS)
        for metric in ("wall_s", "cpu_s"):
            values = {k: [getattr(c, metric) for c in costs] for k, costs in results.items()}
            report(
                f"train step with dovetail-kernels, {name} {ROWS}x{LENGTH}",
                metric=metric,
                unit="s/step",
                values=values["ours"],
                peer="the same step without",
                peer_values=values["plain"],
                peer_again=values["again"],
                losses=losses["ours"],
                peer_losses=losses["plain"],
            )


if __name__ == "__main__":
    main()

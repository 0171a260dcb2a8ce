# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""XLA's temporary bytes of one step at 1 and at 8 microbatches. Deterministic: nothing runs."""

import jax
import numpy as np
import optax
from flax import nnx
from measure import report

from dovetail_train import Trainer, lm_loss
from dovetail_train.testing import TinyDecoder

ROWS, LENGTH, VOCAB = 32, 128, 512


def temp_bytes(accumulate):
    model = TinyDecoder(vocab_size=VOCAB, width=64, depth=4, rngs=nnx.Rngs(0))
    tokens = np.zeros((ROWS, LENGTH), np.int32)
    batch = {"tokens": tokens, "targets": tokens, "mask": np.ones((ROWS, LENGTH), np.float32)}
    trainer = Trainer(optax.adamw(1e-3), lm_loss(), accumulate=accumulate)
    program = trainer.program(model, batch)
    with jax.set_mesh(trainer.mesh):
        step = jax.jit(
            program.fn, donate_argnums=program.donate, out_shardings=program.out_shardings
        )
        compiled = step.lower(*program.args).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def main():
    one, eight = temp_bytes(1), temp_bytes(8)
    report(
        "accumulate=8",
        metric="temporary memory of a step",
        unit="bytes",
        values=[eight],
        peer="accumulate=1",
        peer_values=[one],
        noise=1.0,
        rows=ROWS,
        length=LENGTH,
        vocab=VOCAB,
    )


if __name__ == "__main__":
    main()

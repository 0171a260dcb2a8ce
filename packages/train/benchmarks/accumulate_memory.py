# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""XLA's temporary bytes of one step at 1 and at 8 microbatches. Deterministic: nothing runs."""

import jax
import numpy as np
import optax
from flax import nnx

from dovetail_train import Trainer, lm_loss
from dovetail_train.testing import TinyDecoder
from measure import report

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
    report(
        "accumulate=8 against accumulate=1",
        metric="temporary_bytes",
        unit="bytes",
        values=[temp_bytes(8)],
        peer="accumulate=1",
        peer_values=[temp_bytes(1)],
        peer_again=[temp_bytes(1)],
        rows=ROWS,
        length=LENGTH,
        vocab=VOCAB,
    )


if __name__ == "__main__":
    main()

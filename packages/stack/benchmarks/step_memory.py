# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""XLA's temporary bytes of a train step of a Llama: with and without a guard, recomputation, logits
in chunks. Deterministic: nothing runs."""

import jax
import numpy as np
import optax

from dovetail_kernels import attention
from dovetail_models import Remat, abstract, llama
from dovetail_optim import Guard
from dovetail_train import Trainer, lm_loss
from measure import report

ROWS, LENGTH = 4, 512
CONFIG = llama(vocab_size=16384, embed=256, depth=8, heads=8, kv_heads=4, mlp=704, tie=True)
WHOLE = 10**9  # all logits at once


def temp_bytes(*, scan=True, remat=False, guard=None, chunk=1024):
    model = abstract(CONFIG).configure(scan=scan, remat=remat)
    loss = lm_loss(attention=attention, chunk=chunk)
    trainer = Trainer(optax.adamw(1e-3), loss, guard=guard, max_skips=0)
    tokens = jax.ShapeDtypeStruct((ROWS, LENGTH), np.int32)
    mask = jax.ShapeDtypeStruct((ROWS, LENGTH), np.float32)
    program = trainer.program(model, {"tokens": tokens, "targets": tokens, "mask": mask})
    return program.compile().memory_analysis().temp_size_in_bytes


CASES = {
    "guard, layers unrolled": ({"scan": False, "guard": Guard()}, {"scan": False}),
    "guard, layers scanned": ({"guard": Guard()}, {}),
    "guard, layers recomputed": (
        {"guard": Guard(), "remat": Remat(save=())},
        {"remat": Remat(save=())},
    ),
    "attention kept, the rest recomputed": ({"remat": Remat()}, {}),
    "all recomputed": ({"remat": Remat(save=())}, {}),
    "logits in chunks of 1024": ({"remat": Remat()}, {"remat": Remat(), "chunk": WHOLE}),
}


def main():
    for name, (ours, without) in CASES.items():
        report(
            f"train step, {name}",
            metric="temporary_bytes",
            unit="bytes",
            values=[temp_bytes(**ours)],
            peer="without",
            peer_values=[temp_bytes(**without)],
            rows=ROWS,
            length=LENGTH,
        )


if __name__ == "__main__":
    main()

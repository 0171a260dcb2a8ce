# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One AdamW step of one Llama on this CPU: the recipe's trainer against torch, eager and compiled.

The model is exported and opened by transformers, so both train the same weights on the same rows
in float32; the losses of the first steps are compared before anything is timed. torch takes its
fused AdamW and scaled-dot-product attention. Rows are whole (no packing): transformers' default
attention has no segments.
"""

import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import optax
import torch
from transformers import AutoModelForCausalLM

from dovetail_models import flops, init, llama, save
from dovetail_train import Trainer, lm_loss
from measure import cost, report, rounds

ROWS, LENGTH, STEPS, REPEATS = 8, 256, 3, 7
CONFIG = llama(
    vocab_size=4096, embed=256, depth=6, heads=8, kv_heads=4, head_dim=32, mlp=704, tie=True
)


def batch():
    """The same random rows for both; a model cannot learn them, and need not."""
    ids = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (ROWS, LENGTH + 1), np.int32)
    return {
        "tokens": ids[:, :-1],
        "targets": ids[:, 1:],
        "mask": np.ones((ROWS, LENGTH), np.float32),
    }


class Ours:
    """The trainer of dovetail-train, as a user would call it."""

    def __init__(self, model):
        tx = optax.adamw(1e-3, b2=0.95, weight_decay=0.1)
        self.trainer = Trainer(tx, lm_loss())
        self.state = self.trainer.init(model)
        self.batch = batch()

    def step(self):
        self.state, metrics = self.trainer.step(self.state, self.batch)
        return metrics.scalars["loss"]

    def steps(self):
        for _ in range(STEPS):
            loss = self.step()
        jax.block_until_ready((self.state, loss))


class Torch:
    """The usual loop: fused AdamW, the library's own attention."""

    def __init__(self, directory, *, compiled):
        self.model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="sdpa")
        self.model.train()
        self.tx = torch.optim.AdamW(
            self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        self.tokens = torch.from_numpy(batch()["tokens"]).long()
        self.targets = torch.from_numpy(batch()["targets"]).long().flatten()
        self.loss = torch.compile(self._loss) if compiled else self._loss

    def _loss(self, tokens, targets):
        logits = self.model(input_ids=tokens, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets)

    def step(self):
        loss = self.loss(self.tokens, self.targets)
        loss.backward()
        self.tx.step()
        self.tx.zero_grad(set_to_none=True)
        return loss.detach()

    def steps(self):
        for _ in range(STEPS):
            self.step()


def first_losses(candidate):
    """(the losses of three steps, the seconds of the first of them, which compiles)."""
    start = time.perf_counter()
    losses = [float(candidate.step())]
    return [*losses, *(float(candidate.step()) for _ in range(2))], time.perf_counter() - start


def main():
    model = init(CONFIG, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "hf"
        save(model, directory)
        candidates = {
            "dovetail": Ours(model),
            "torch eager": Torch(directory, compiled=False),
            "torch eager again": Torch(directory, compiled=False),
            "torch.compile": Torch(directory, compiled=True),
        }
        found = {name: first_losses(candidate) for name, candidate in candidates.items()}
        for name, (losses, _) in found.items():
            # float32 through 6 layers in other orders of summation, then 2 updates.
            np.testing.assert_allclose(losses, found["torch eager"][0], rtol=2e-4, err_msg=name)
        results = rounds(
            {name: (lambda c=c: cost(c.steps)) for name, c in candidates.items()}, repeats=REPEATS
        )
    gflop = flops(CONFIG, tokens=ROWS * LENGTH, length=LENGTH) / 1e9
    for peer in ("torch eager", "torch.compile"):
        for metric in ("wall_s", "cpu_s"):
            per_step = {
                name: [getattr(c, metric) / STEPS for c in costs] for name, costs in results.items()
            }
            report(
                f"train step, Llama {ROWS}x{LENGTH}, against {peer}",
                metric=metric,
                unit="s/step",
                values=per_step["dovetail"],
                peer="torch",
                peer_values=per_step[peer],
                peer_again=per_step["torch eager again"] if peer == "torch eager" else None,
                compile_s=found["dovetail"][1],
                peer_compile_s=round(found[peer][1], 3),
                losses=found["dovetail"][0],
                peer_losses=found[peer][0],
                gflop_per_step=round(gflop, 2),
            )


if __name__ == "__main__":
    main()

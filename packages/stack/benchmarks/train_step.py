# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One AdamW step of Llamas of 5 and 60 M parameters on this CPU: the trainer with the attention of
dovetail-kernels, as the recipes have it, against torch, eager and compiled.

The model is exported and opened by transformers, so both train the same weights on the same rows
in float32; the losses of the first steps are compared before anything is timed. torch takes its
fused AdamW and scaled-dot-product attention. Rows are whole (no packing): transformers' default
attention has no segments.
"""

import dataclasses
import statistics
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import optax
import torch
from transformers import AutoModelForCausalLM

from dovetail_kernels import attention
from dovetail_models import Config, flops, init, llama, save
from dovetail_train import Trainer, lm_loss
from measure import cost, report, rounds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A model, its batch, and how many steps of how many rounds are timed."""

    config: Config
    rows: int
    length: int
    steps: int
    repeats: int

    def batch(self):
        """The same random rows for both; a model cannot learn them, and need not."""
        shape, vocab = (self.rows, self.length + 1), self.config.vocab_size
        ids = np.random.default_rng(0).integers(0, vocab, shape, np.int32)
        mask = np.ones((self.rows, self.length), np.float32)
        return {"tokens": ids[:, :-1], "targets": ids[:, 1:], "mask": mask}


CASES = {
    "5M": Case(
        config=llama(vocab_size=4096, embed=256, depth=6, heads=8, kv_heads=4, mlp=704, tie=True),
        rows=8,
        length=256,
        steps=3,
        repeats=7,
    ),
    "60M": Case(
        config=llama(
            vocab_size=32000, embed=640, depth=9, heads=10, kv_heads=5, mlp=1728, tie=True
        ),
        rows=2,
        length=512,
        steps=1,
        repeats=5,
    ),
}


class Ours:
    """The trainer of dovetail-train, as a user would call it."""

    def __init__(self, model, case):
        tx = optax.adamw(1e-3, b2=0.95, weight_decay=0.1)
        self.trainer = Trainer(tx, lm_loss(attention=attention))
        self.state = self.trainer.init(model)
        self.batch, self.count = case.batch(), case.steps

    def step(self):
        self.state, metrics = self.trainer.step(self.state, self.batch)
        return metrics.scalars["loss"]

    def steps(self):
        for _ in range(self.count):
            loss = self.step()
        jax.block_until_ready((self.state, loss))


class Torch:
    """The usual loop: fused AdamW, the library's own attention."""

    def __init__(self, directory, case, *, compiled):
        self.model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation="sdpa")
        self.model.train()
        self.tx = torch.optim.AdamW(
            self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        batch, self.count = case.batch(), case.steps
        self.tokens = torch.from_numpy(batch["tokens"]).long()
        self.targets = torch.from_numpy(batch["targets"]).long().flatten()
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
        for _ in range(self.count):
            self.step()


def first_losses(candidate):
    """(the losses of three steps, the seconds of the first of them, which compiles)."""
    start = time.perf_counter()
    losses = [float(candidate.step())]
    return [*losses, *(float(candidate.step()) for _ in range(2))], time.perf_counter() - start


def measure(name, case):
    model = init(case.config, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "hf"
        save(model, directory)
        candidates = {
            "dovetail": Ours(model, case),
            "torch eager": Torch(directory, case, compiled=False),
            "torch eager again": Torch(directory, case, compiled=False),
            "torch.compile": Torch(directory, case, compiled=True),
        }
        found = {who: first_losses(candidate) for who, candidate in candidates.items()}
        for who, (losses, _) in found.items():
            # float32 through the layers in other orders of summation, then 2 updates.
            np.testing.assert_allclose(losses, found["torch eager"][0], rtol=2e-4, err_msg=who)
        results = rounds(
            {who: (lambda c=c: cost(c.steps)) for who, c in candidates.items()},
            repeats=case.repeats,
        )
    tokens = case.rows * case.length
    gflop = flops(case.config, tokens=tokens, length=case.length) / 1e9
    for peer in ("torch eager", "torch.compile"):
        for metric in ("wall_s", "cpu_s"):
            per_step = {
                who: [getattr(c, metric) / case.steps for c in costs]
                for who, costs in results.items()
            }
            report(
                f"train step, Llama {name} {case.rows}x{case.length}, against {peer}",
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
                tokens_per_cpu_s=tokens / statistics.median(per_step["dovetail"])
                if metric == "cpu_s"
                else None,
            )


def main():
    for name, case in CASES.items():
        measure(name, case)


if __name__ == "__main__":
    main()

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A step of DPO against a supervised step of as many tokens: one trainer, model and batch.

The reference is a field of the batch, or a frozen twin. A twin costs a third forward pass beside
the forward pass and the two of the backward pass: 4/3 is its limit. Before anything is timed, the
log-probabilities of DPO are compared with the supervised loss, and its first loss with log 2.
"""

import dataclasses
import functools
import math
import time
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from dovetail_kernels import attention, linear_cross_entropy, linear_logprobs
from dovetail_models import Config, init, llama
from dovetail_train import Trainer, lm_loss
from dovetail_tune import TRAINED, Field, Frozen, Twin, dpo, token_logps
from measure import cost, report, rounds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A model, its batch, the operations of its head, and what is timed."""

    config: Config
    rows: int
    length: int
    steps: int
    repeats: int
    kernels: bool = False

    def batch(self) -> dict[str, np.ndarray]:
        """Random pairs: a prompt of a quarter of the row, and two answers, all of which count."""
        shape, vocab = (self.rows, self.length + 1), self.config.vocab_size
        ids = np.random.default_rng(0).integers(0, vocab, shape, np.int32)
        prompt = self.length // 4
        ids[1::2, : prompt + 1] = ids[0::2, : prompt + 1]
        mask = np.ones((self.rows, self.length), np.float32)
        mask[:, :prompt] = 0
        pair_ids = np.repeat(np.arange(self.rows // 2, dtype=np.int32), 2)
        return {"tokens": ids[:, :-1], "targets": ids[:, 1:], "mask": mask, "pair_ids": pair_ids}


SMALL = llama(vocab_size=4096, embed=256, depth=6, heads=8, kv_heads=4, mlp=704, tie=True)
CASES = {
    "5M": Case(config=SMALL, rows=8, length=256, steps=3, repeats=5),
    "5M with dovetail-kernels' head": Case(
        config=SMALL, rows=8, length=256, steps=3, repeats=5, kernels=True
    ),
}


class Candidate:
    """A trainer, its state and its batch."""

    def __init__(self, case: Case, loss: Any, model: nnx.Module, **fields: Any):
        trainable = TRAINED if isinstance(model, Twin) else nnx.Param
        self.trainer = Trainer(optax.adamw(1e-4), loss, trainable=trainable)
        self.state, self.batch = self.trainer.init(model), case.batch() | fields
        self.count = case.steps
        start = time.perf_counter()
        self.first = self.step()
        self.compile_s = time.perf_counter() - start

    def step(self) -> dict[str, float]:
        self.state, metrics = self.trainer.step(self.state, self.batch)
        return metrics.read()

    def steps(self) -> None:
        for _ in range(self.count):
            self.state, _ = self.trainer.step(self.state, self.batch)
        jax.block_until_ready(self.state)


def candidates(case: Case) -> dict[str, Candidate]:
    sft_head = {"cross_entropy": linear_cross_entropy} if case.kernels else {}
    head = {"logprobs": linear_logprobs} if case.kernels else {}
    scorer = functools.partial(token_logps, attention=attention, **head)
    sft = lm_loss(attention=attention, **sft_head)
    field, frozen = (dpo(reference=r, scorer=scorer) for r in (Field(), Frozen()))
    model = init(case.config, seed=0)
    rows = jax.jit(lambda batch: scorer(model, batch).logprob.sum(1))(case.batch())
    return {
        "sft": Candidate(case, sft, model),
        "field": Candidate(case, field, model, ref_logps=np.asarray(rows)),
        "twin": Candidate(case, frozen, Twin(model, nnx.clone(model))),
        "sft again": Candidate(case, sft, model),
    }


def check(found: dict[str, Candidate]) -> None:
    """Raises unless all compute the same log-probabilities, and DPO begins at log 2."""
    nll, mask = found["sft"].first["loss"], found["sft"].batch["mask"]
    for name in ("field", "twin"):
        first = found[name].first
        both = first["loss/logps_chosen"] + first["loss/logps_rejected"]
        # float32 sums of a few thousand tokens in other orders.
        np.testing.assert_allclose(-both / 2 / mask[0].sum(), nll, rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(first["loss"], math.log(2), rtol=1e-4, err_msg=name)


def measure(name: str, case: Case) -> None:
    found = candidates(case)
    check(found)
    results = rounds(
        {who: functools.partial(cost, c.steps) for who, c in found.items()}, repeats=case.repeats
    )
    for who in ("field", "twin"):
        for metric in ("wall_s", "cpu_s"):
            per_step = {
                w: [getattr(c, metric) / case.steps for c in costs] for w, costs in results.items()
            }
            report(
                f"DPO step, reference {who}, Llama {name} {case.rows}x{case.length}",
                metric=metric,
                unit="s/step",
                values=per_step[who],
                peer="the supervised step",
                peer_values=per_step["sft"],
                peer_again=per_step["sft again"],
                compile_s=found[who].compile_s,
                peer_compile_s=round(found["sft"].compile_s, 3),
                first_loss=found[who].first["loss"],
                peer_first_loss=found["sft"].first["loss"],
            )


if __name__ == "__main__":
    for name, case in CASES.items():
        measure(name, case)

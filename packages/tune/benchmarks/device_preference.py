# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""DPO of a Llama on this device in bfloat16, against supervised steps of as many tokens.

Both have the operations of dovetail-kernels; the reference is a field of the batch, so the steps
differ in the head alone: `linear_logprobs` has one product more than `linear_cross_entropy`.
"""

import functools
import math
from typing import Any

import jax
import numpy as np
import optax

from dovetail_kernels import attention, linear_cross_entropy, linear_logprobs
from dovetail_models import Config, cast, init, llama, size
from dovetail_train import Precision, Trainer, lm_loss
from dovetail_tune import dpo, token_logps
from measure import cost, report, rounds

BLOCK, REPEATS = 5, 5
SCORER = functools.partial(token_logps, attention=attention, logprobs=linear_logprobs)


def batch(config: Config, rows: int, length: int) -> dict[str, np.ndarray]:
    """Random pairs, all of whose tokens count, with a reference that still is to be set."""
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (rows, length + 1), np.int32)
    return {
        "tokens": ids[:, :-1],
        "targets": ids[:, 1:],
        "mask": np.ones((rows, length), np.float32),
        "pair_ids": np.repeat(np.arange(rows // 2, dtype=np.int32), 2),
        "ref_logps": np.zeros(rows, np.float32),
    }


def preference() -> Any:
    """DPO with the operations of dovetail-kernels."""
    return dpo(scorer=SCORER)


def trainer(loss: Any, *, mesh: Any = None) -> Trainer:
    """AdamW and bfloat16."""
    return Trainer(
        optax.adamw(1e-5), loss, mesh=mesh, precision=Precision(compute="bfloat16"), flops=1.0
    )


def train(sizes: dict[str, int], rows: int, length: int) -> None:
    """Prints the seconds of a step of DPO, and their ratio to those of a supervised step."""
    config = llama(**sizes, kv_heads=sizes["heads"], tie=True)
    model, given = init(config, seed=0), batch(config, rows, length)
    score = jax.jit(lambda model, batch: SCORER(model, batch).logprob.sum(1))
    given["ref_logps"] = np.asarray(score(cast(model, "bfloat16"), given))
    sft = lm_loss(attention=attention, cross_entropy=linear_cross_entropy)
    candidates = {}
    for name, loss in (("dpo", preference()), ("sft", sft), ("again", sft)):
        one = trainer(loss)
        candidates[name] = [one, one.init(model)]
    first = _steps(candidates["dpo"], given, 1)
    calls = {
        name: functools.partial(cost, functools.partial(_steps, candidate, given, BLOCK))
        for name, candidate in candidates.items()
    }
    found = rounds(calls, repeats=REPEATS)
    last = _steps(candidates["dpo"], given, 1)
    if not (math.isfinite(last) and last < first):
        raise RuntimeError(f"the loss must fall, got {first} to {last}")
    seconds = {name: [c.wall_s / BLOCK for c in costs] for name, costs in found.items()}
    report(
        f"DPO step, Llama of {size(config) / 1e6:.3g} million, {rows}x{length}, bfloat16",
        metric="wall_s",
        unit="s/step",
        values=seconds["dpo"],
        peer="the supervised step",
        peer_values=seconds["sft"],
        peer_again=seconds["again"],
        losses=[first, last],
    )


def _steps(candidate: list[Any], given: dict[str, np.ndarray], count: int) -> float:
    """The loss of the last of `count` steps; the candidate's state is that after them."""
    one, _ = candidate
    for _ in range(count):
        candidate[1], metrics = one.step(candidate[1], given)
    jax.block_until_ready(candidate[1])
    return float(metrics.scalars["loss"])

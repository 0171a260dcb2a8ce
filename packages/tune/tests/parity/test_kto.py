# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""KTO and its mismatched rows against TRL's trainer, on one table of logits for both."""

from __future__ import annotations

import types
from collections import defaultdict
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_tune import kto, mean_loss, with_mismatched, with_reference

torch = pytest.importorskip("torch")
trainer = pytest.importorskip("trl.trainer.kto_trainer")

pytestmark = pytest.mark.parity

VOCAB, LENGTH = 13, 12
PROMPTS = [[3, 1, 4], [1, 5], [9, 2, 6, 5], [3, 5, 8], [9, 7, 9]]
ANSWERS = [[2, 6, 4], [3, 3, 8, 3], [2], [7, 9, 5, 0, 2], [8, 8]]
LABELS = [True, False, True, True, False]
OPTIONS = {"beta": 0.3, "desirable_weight": 1.2, "undesirable_weight": 0.7}


class Bigram(nnx.Module):
    """Logits of the next token are a row of a table."""

    def __init__(self, table: Any) -> None:
        self.table = nnx.Param(jnp.asarray(table, jnp.float32))

    def features(self, tokens: Any, **_: Any) -> tuple[Any, None]:
        return self.table[...][tokens], None

    def head(self, x: Any) -> Any:
        return x


class TorchBigram(torch.nn.Module):
    """The same, with the outputs of a fused head that TRL reads."""

    def __init__(self, table: Any) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.tensor(table, dtype=torch.float32))

    def forward(self, input_ids: Any, labels: Any, **_: Any) -> Any:
        log_p = torch.log_softmax(self.table[input_ids], dim=-1)[:, :-1]
        targets = labels[:, 1:]
        counts = targets != -100
        picked = log_p.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
        nothing = torch.zeros_like(picked)
        return types.SimpleNamespace(
            log_probs=torch.where(counts, picked, nothing), entropy=nothing, mean_logits=nothing
        )


def _tables() -> list[np.ndarray]:
    return [np.random.default_rng(seed).normal(size=(VOCAB, VOCAB)) for seed in range(2)]


def _batch() -> dict[str, Any]:
    tokens, targets, segment_ids, positions = np.zeros((4, len(PROMPTS), LENGTH), np.int32)
    mask = np.zeros((len(PROMPTS), LENGTH), np.float32)
    for i, (prompt, answer) in enumerate(zip(PROMPTS, ANSWERS, strict=True)):
        ids = prompt + answer
        n = len(ids) - 1
        tokens[i, :n], targets[i, :n] = ids[:-1], ids[1:]
        mask[i, len(prompt) - 1 : n] = 1
        segment_ids[i, :n], positions[i, :n] = 1, np.arange(n)
    fields = {"tokens": tokens, "targets": targets, "mask": mask, "segment_ids": segment_ids}
    return {**fields, "positions": positions, "desirable": np.array(LABELS)}


def _theirs(kind: str, tables: list[np.ndarray], *, swapped: bool) -> tuple[float, Any, Any]:
    """Returns loss, gradient and metrics of TRL."""
    kl_answers = [ANSWERS[-1], *ANSWERS[:-1]]  # as its `_prepare_dataset` does
    rows = zip(PROMPTS, ANSWERS, kl_answers, LABELS, strict=True)
    names = ("prompt_ids", "completion_ids", "KL_completion_ids", "label")
    examples = [dict(zip(names, row, strict=True)) for row in rows]
    inputs = trainer.DataCollatorForUnpairedPreference(pad_token_id=0)(examples)
    policy, reference = (TorchBigram(table) for table in (tables[::-1] if swapped else tables))
    accelerator = types.SimpleNamespace(device="cpu", gather_for_metrics=lambda x: x)
    stub = types.SimpleNamespace(
        model=policy,
        ref_model=reference,
        accelerator=accelerator,
        args=types.SimpleNamespace(
            gradient_checkpointing=False, gradient_checkpointing_kwargs=None
        ),
        calculate_KL=kind == "kto",
        loss_type=kind,
        aux_loss_enabled=False,
        precompute_ref_logps=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _total_train_tokens=0,
        _tp_size=1,
        **OPTIONS,
    )
    stub._compute_kl_logps = types.MethodType(trainer.KTOTrainer._compute_kl_logps, stub)
    loss = trainer.KTOTrainer._compute_loss(stub, policy, inputs, return_outputs=False)
    loss.backward()
    metrics = {name: values[-1] for name, values in stub._metrics["train"].items()}
    return float(loss.detach()), policy.table.grad.numpy(), metrics


@pytest.mark.parametrize("swapped", [False, True])  # z0 above 0, and clamped to 0
@pytest.mark.parametrize("kind", ["kto", "apo_zero_unpaired"])
def test_kto_equals_trl(kind, swapped, monkeypatch):
    monkeypatch.setattr(trainer, "is_peft_model", lambda model: False)
    monkeypatch.setattr(trainer, "disable_gradient_checkpointing", lambda *_: torch.no_grad())
    tables = _tables()
    expected, gradient, metrics = _theirs(kind, tables, swapped=swapped)
    policy, reference = (Bigram(table) for table in (tables[::-1] if swapped else tables))
    batch = next(with_reference(with_mismatched([_batch()]), reference))
    mean = mean_loss(kto(kind=kind, **OPTIONS))
    (loss, terms), grads = nnx.value_and_grad(mean, has_aux=True)(policy, batch)
    # float32 sums of up to 5 log-probabilities, on both sides.
    np.testing.assert_allclose(loss, expected, rtol=2e-6)
    np.testing.assert_allclose(grads["table"][...], gradient, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(terms["reward_desirable"], metrics["rewards/chosen"], rtol=2e-5)
    np.testing.assert_allclose(terms["reward_undesirable"], metrics["rewards/rejected"], rtol=2e-5)
    if kind == "kto":
        np.testing.assert_allclose(terms["margin"], metrics["rewards/margins"], rtol=2e-5)
        np.testing.assert_allclose(terms["kl"], metrics["kl"], rtol=2e-5, atol=2e-6)
        assert (terms["kl"] == 0) == swapped

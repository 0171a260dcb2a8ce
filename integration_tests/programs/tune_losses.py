# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The table of post-training losses that train alike however a batch is split: a line for each.

No program: tune_meshes.py and test_tune_with_train.py run the table.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from dovetail_models import init, llama, lora
from dovetail_tune import (
    TRAINED,
    AdaptersOff,
    Frozen,
    RewardModel,
    TopK,
    Twin,
    cpo,
    dpo,
    gkd,
    info_nce,
    kto,
    mean_pooled,
    orpo,
    outcome_reward,
    process_reward,
    reward_model,
    simpo,
    triplet,
    with_mismatched,
)

VOCAB, WIDTH, LENGTH = 40, 16, 12
# Groups of 2 and of 3 rows divide among 8 devices, and among 4 microbatches of one device.
ROWS = 48
CONFIG = llama(vocab_size=VOCAB, embed=WIDTH, depth=1, heads=2, kv_heads=2, mlp=24)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A loss with its model.

    Args:
        loss: Makes the loss. Called with chunks=n where `whole` is True.
        model: Makes the model on a mesh.
        trainable: Filter of the trainer.
        whole: The loss compares all rows of a batch, which is not split into microbatches.
    """

    loss: Callable[..., Any]
    model: Callable[[Any], nnx.Module] = lambda mesh: decoder(mesh)
    trainable: Any = nnx.Param
    whole: bool = False


def decoder(mesh: Any, seed: int = 0) -> nnx.Module:
    return init(CONFIG, mesh=mesh, seed=seed)


def twin(mesh: Any) -> nnx.Module:
    return Twin(decoder(mesh), decoder(mesh, seed=1))


def adapted(mesh: Any) -> nnx.Module:
    """A decoder with adapters that change its answers."""
    model = lora.insert(decoder(mesh), "**.{q,v,up}", rank=2, alpha=4, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(1)
    state = nnx.state(model, nnx.LoRAParam)
    moved = jax.tree.map(lambda p: p + 0.1 * rng.standard_normal(p.shape, np.float32), state)
    nnx.update(model, moved)
    return model


def valued(mesh: Any) -> nnx.Module:
    return RewardModel(decoder(mesh), nnx.Linear(WIDTH, 1, rngs=nnx.Rngs(2)))


def unpaired() -> Any:
    """Labels from the pairs of the batch, which must then stay whole."""
    loss = kto(kind="apo_zero_unpaired")
    loss.rows = 2
    return loss


FROZEN = {"model": twin, "trainable": TRAINED}
ENCODE = mean_pooled(mask="mask")
LOSSES = {
    "dpo": Case(loss=dpo),
    "dpo_twin": Case(loss=lambda: dpo(reference=Frozen()), **FROZEN),
    "dpo_adapters": Case(
        loss=lambda: dpo(reference=AdaptersOff()), model=adapted, trainable=nnx.LoRAParam
    ),
    "dpo_mixed": Case(loss=lambda: dpo(kind={"ipo": 1.0, "sft": 0.5}, chunks=3)),
    "dpo_aot": Case(loss=lambda **chunks: dpo(kind="aot", **chunks), whole=True),
    "orpo": Case(loss=orpo),
    "simpo": Case(loss=simpo),
    "cpo": Case(loss=cpo),
    "kto": Case(loss=kto, whole=True),
    "apo_zero_unpaired": Case(loss=unpaired),
    "reward_model": Case(loss=lambda: reward_model(margin="margin", center=0.1), model=valued),
    "outcome_reward": Case(loss=outcome_reward, model=valued),
    "process_reward": Case(loss=process_reward, model=valued),
    "gkd": Case(loss=lambda: gkd(kind="jsd", nll=True), **FROZEN),
    "gkd_top_k": Case(loss=lambda: gkd(teacher=TopK())),
    "info_nce": Case(loss=lambda **chunks: info_nce(encode=ENCODE, **chunks), whole=True),
    "triplet": Case(loss=lambda: triplet(encode=ENCODE, margin=0.5)),
}


def batch(seed: int = 0) -> dict[str, np.ndarray]:
    """Pairs with one prompt each, of unequal lengths, and every field that a loss reads."""
    rng = np.random.default_rng(seed)
    tokens, targets, segment_ids, positions = np.zeros((4, ROWS, LENGTH), np.int32)
    mask = np.zeros((ROWS, LENGTH), np.float32)
    for i in range(ROWS):
        n = int(rng.integers(LENGTH // 2, LENGTH + 1))
        ids = rng.integers(0, VOCAB, n + 1)
        if i % 2:
            ids[:4] = tokens[i - 1, :4]
        tokens[i, :n], targets[i, :n], mask[i, 3:n] = ids[:-1], ids[1:], 1
        segment_ids[i, :n], positions[i, :n] = 1, np.arange(n)
    pairs = {
        "tokens": tokens,
        "targets": targets,
        "mask": mask,
        "segment_ids": segment_ids,
        "positions": positions,
        "pair_ids": np.repeat(rng.permutation(1000)[: ROWS // 2].astype(np.int32), 2),
    }
    return dict(next(with_mismatched([pairs]))) | _values(rng, mask)


def _values(rng: np.random.Generator, mask: np.ndarray) -> dict[str, np.ndarray]:
    """What references, annotators and teachers say of the rows."""
    top = np.stack([rng.permutation(VOCAB)[:3] for _ in range(mask.size)])
    floats = {
        "ref_logps": -mask.sum(1) * rng.uniform(2, 5, ROWS),
        "kl_ref_logps": -mask.sum(1) * rng.uniform(2, 5, ROWS),
        "margin": np.repeat(rng.uniform(0, 1, ROWS // 2), 2),
        "reward": rng.uniform(0, 1, ROWS),
        "step_labels": rng.uniform(0, 1, mask.shape),
        "step_mask": (rng.random(mask.shape) < 0.4) * mask,
        "teacher_logps": np.log(rng.uniform(0.1, 0.3, (*mask.shape, 3))),
    }
    ids = {"teacher_ids": top.reshape(*mask.shape, 3).astype(np.int32)}
    return {name: x.astype(np.float32) for name, x in floats.items()} | ids

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
from dovetail_tune import TRAINED, AdaptersOff, Field, Frozen, Twin, dpo

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
    model: Callable[[Any], nnx.Module]
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


LOSSES = {
    "dpo": Case(loss=lambda: dpo(reference=Field()), model=decoder),
    "dpo_twin": Case(loss=lambda: dpo(reference=Frozen()), model=twin, trainable=TRAINED),
    "dpo_adapters": Case(
        loss=lambda: dpo(reference=AdaptersOff()), model=adapted, trainable=nnx.LoRAParam
    ),
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
    ref = -mask.sum(1) * rng.uniform(2, 5, ROWS)
    return {
        "tokens": tokens,
        "targets": targets,
        "mask": mask,
        "segment_ids": segment_ids,
        "positions": positions,
        "pair_ids": np.repeat(rng.permutation(1000)[: ROWS // 2].astype(np.int32), 2),
        "ref_logps": ref.astype(np.float32),
    }

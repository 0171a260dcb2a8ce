# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""float64 NumPy: log-probabilities of a decoder's targets from its float32 features and head."""

from typing import Any

import jax.numpy as jnp
import numpy as np


def log_sigmoid(x: Any) -> np.ndarray:
    """Returns log sigmoid(x) in float64, without overflow."""
    return -np.logaddexp(0.0, -np.asarray(x, np.float64))


def token_logps(
    model: Any, batch: Any, *, temperature: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Returns log-probabilities and entropies [B, S] of masked targets; 0 elsewhere."""
    names = [name for name in ("positions", "segment_ids") if name in batch]
    options = {name: jnp.asarray(batch[name]) for name in names}
    x = np.asarray(model.features(jnp.asarray(batch["tokens"]), **options)[0], np.float64)
    weight, cap = model.head_weight()
    logits = x @ np.asarray(weight, np.float64)
    logits = logits if cap is None else cap * np.tanh(logits / cap)
    logits = logits / temperature
    top = logits.max(-1, keepdims=True)
    log_p = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    targets, mask = np.asarray(batch["targets"]), np.asarray(batch["mask"]) > 0
    picked = np.take_along_axis(log_p, targets[..., None], axis=-1)[..., 0]
    entropy = -(np.exp(log_p) * log_p).sum(-1)
    return np.where(mask, picked, 0.0), np.where(mask, entropy, 0.0)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Models and the trainer with the operations of dovetail-kernels: the same answers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_kernels import attention, grouped_matmul, linear_cross_entropy
from dovetail_models import Remat, gemma2, gpt_oss, init, llama
from dovetail_train import Trainer, lm_loss

SMALL = {"vocab_size": 53, "embed": 24, "depth": 2, "heads": 4, "mlp": 20}
CONFIGS = {
    "llama": llama(**SMALL, kv_heads=2, head_dim=8),
    "gemma2": gemma2(**SMALL, kv_heads=2, head_dim=8, window=5, query_scalar=8.0, score_cap=2.0),
    "gpt_oss": gpt_oss(**SMALL, kv_heads=2, head_dim=8, window=5, experts=5, top_k=2),
}


@pytest.fixture(scope="module")
def batch():
    """Packed rows of odd documents, with padding at the end, and targets that do not count."""
    rng = np.random.default_rng(0)
    segments = np.repeat([[1, 2, 3, 0], [1, 2, 3, 4]], [11, 3, 20, 3], axis=1).astype(np.int32)
    shape = segments.shape
    starts = np.diff(segments, axis=1, prepend=-1) != 0
    index = np.broadcast_to(np.arange(shape[1]), shape)
    return {
        "tokens": rng.integers(0, 53, shape, dtype=np.int32),
        "targets": rng.integers(0, 53, shape, dtype=np.int32),
        "segment_ids": segments,
        "positions": index - np.maximum.accumulate(np.where(starts, index, 0), axis=1),
        "mask": (segments != 0).astype(np.float32) * (rng.random(shape) < 0.8),
    }


def _random(config):
    """A model without the ones and zeros that hide sinks, biases and scales."""
    model = init(config, seed=0)
    rng = np.random.default_rng(1)
    state = nnx.state(model, nnx.Param)
    moved = jax.tree.map(lambda p: p + 0.1 * rng.standard_normal(p.shape, np.float32), state)
    nnx.update(model, moved)
    return model


@pytest.mark.capability("the training step with the kernels' attention and loss")
@pytest.mark.parametrize("family", CONFIGS)
def test_a_loss_and_its_gradients_do_not_change(family, batch):
    model = _random(CONFIGS[family])
    batch = {**batch, "positions": batch["positions"].astype(np.int32)}

    def gradients(loss, model):
        def mean(model):
            total, count = loss(model, batch, key=None)
            return total / count

        return nnx.jit(nnx.value_and_grad(mean))(model)

    value, grads = gradients(lm_loss(), model)
    fast = lm_loss(attention=attention, cross_entropy=linear_cross_entropy)
    ours, moved = gradients(fast, model.configure(ragged_dot=grouped_matmul))
    # float32 in other orders of summation, through two layers.
    assert float(ours) == pytest.approx(float(value), rel=2e-6)
    for path, wanted in nnx.to_flat_state(grads):
        got = dict(nnx.to_flat_state(moved))[path]
        scale = float(jnp.abs(wanted[...]).max())
        np.testing.assert_allclose(got[...], wanted[...], atol=2e-5 * scale, err_msg=str(path))


@pytest.mark.parametrize("remat", [None, Remat()])
def test_a_run_has_the_same_losses(batch, remat):
    def losses(**operations):
        model = init(CONFIGS["llama"], seed=0).configure(scan=True, remat=remat)
        trainer = Trainer(optax.adamw(1e-2), lm_loss(z=1e-3, **operations))
        state, found = trainer.init(model), []
        for _ in range(5):
            state, metrics = trainer.step(state, batch)
            found.append(float(metrics.scalars["loss"]))
        return found

    plain = losses()
    assert plain[-1] < plain[0] - 0.1
    fast = losses(attention=attention, cross_entropy=linear_cross_entropy)
    # Adam divides by the root of a second moment: rounding grows over five steps.
    np.testing.assert_allclose(fast, plain, rtol=2e-5)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of the trainer against torch's own autograd and AdamW."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import Trainer, lm_loss
from dovetail_train.testing import TinyDecoder

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = pytest.mark.parity

RATE, DECAY, WIDTH, VOCAB = 3e-2, 0.1, 8, 13


def _randomised(model):
    """Biases and norm scales as well: zeros and ones would hide a missing one."""
    rng = np.random.default_rng(0)
    state = nnx.state(model, nnx.Param)
    nnx.update(
        model, jax.tree.map(lambda x: x + jnp.float32(0.3) * rng.normal(size=x.shape), state)
    )
    return model


def _parameters(state):
    """The trainer's parameters as torch leaves, by dotted name."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): torch.tensor(
            np.asarray(x), requires_grad=True
        )
        for path, x in jax.tree_util.tree_leaves_with_path(state.params)
    }


def _compare(trainer, state, batches, forward):
    """Three steps of both; losses and parameters must agree."""
    params = _parameters(state)
    adamw = torch.optim.AdamW(params.values(), lr=RATE, weight_decay=DECAY)
    for batch in batches:
        adamw.zero_grad()
        loss = forward(params, {name: torch.tensor(x) for name, x in batch.items()})
        loss.backward()
        adamw.step()
        state, metrics = trainer.step(state, batch)
        # float32 in both, sums of at most some hundred terms in another order.
        assert metrics.read()["loss"] == pytest.approx(float(loss.detach()), rel=2e-6)
    for path, x in jax.tree_util.tree_leaves_with_path(state.params):
        want = params[jax.tree_util.keystr(path, simple=True, separator=".")].detach().numpy()
        # Adam divides by the gradient's size: a relative rounding error of a gradient moves the
        # parameter by that part of the rate.
        np.testing.assert_allclose(x, want, rtol=0, atol=RATE * 2e-3)


class _Mlp(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.up, self.down = nnx.Linear(3, 7, rngs=rngs), nnx.Linear(7, 2, rngs=rngs)

    def __call__(self, x):
        return self.down(jnp.tanh(self.up(x)))


def test_an_mlp():
    def loss(model, batch, *, key):
        error = batch["mask"][:, None] * (model(batch["x"]) - batch["y"]) ** 2
        return error.sum(), batch["mask"].sum()

    def forward(p, batch):
        hidden = torch.tanh(batch["x"] @ p["up.kernel"] + p["up.bias"])
        out = hidden @ p["down.kernel"] + p["down.bias"]
        error = batch["mask"][:, None] * (out - batch["y"]) ** 2
        return error.sum() / batch["mask"].sum()

    rng = np.random.default_rng(1)
    batches = [
        {
            "x": rng.normal(size=(8, 3)).astype("f4"),
            "y": rng.normal(size=(8, 2)).astype("f4"),
            "mask": (rng.random(8) < 0.7).astype("f4"),
        }
        for _ in range(3)
    ]
    trainer = Trainer(optax.adamw(RATE, weight_decay=DECAY), loss, accumulate=4)
    _compare(trainer, trainer.init(_randomised(_Mlp())), batches, forward)


def _decoder_loss(p, batch):
    """TinyDecoder and its masked cross-entropy, in torch."""
    tokens = batch["tokens"].long()
    length = tokens.shape[1]
    rates = torch.exp(-torch.arange(WIDTH // 2, dtype=torch.float32) * 0.5)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * rates
    x = p["embed.embedding"][tokens] + torch.cat([angles.sin(), angles.cos()], -1)
    for i in range(2):
        layer = f"layers.{i}."
        normed = F.rms_norm(x, (WIDTH,), p[layer + "norm.scale"], eps=1e-6)
        q, k, v = (normed @ p[layer + "qkv.kernel"]).split(WIDTH, -1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        hidden = F.silu(x @ p[layer + "up.kernel"] + p[layer + "up.bias"])
        x = x + hidden @ p[layer + "down.kernel"] + p[layer + "down.bias"]
    logits = F.rms_norm(x, (WIDTH,), p["norm.scale"], eps=1e-6) @ p["out.kernel"]
    nll = F.cross_entropy(logits.flatten(0, 1), batch["targets"].long().flatten(), reduction="none")
    return (nll * batch["mask"].flatten()).sum() / batch["mask"].sum()


def test_a_decoder_with_microbatches_and_chunks():
    rng = np.random.default_rng(2)
    batches = []
    for _ in range(3):
        tokens = rng.integers(0, VOCAB, (4, 8), dtype=np.int32)
        mask = (rng.random((4, 7)) < 0.6).astype("f4")
        batches.append({"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "mask": mask})
    model = TinyDecoder(vocab_size=VOCAB, width=WIDTH, depth=2, rngs=nnx.Rngs(0))
    trainer = Trainer(optax.adamw(RATE, weight_decay=DECAY), lm_loss(chunk=6), accumulate=2)
    _compare(trainer, trainer.init(_randomised(model)), batches, _decoder_loss)

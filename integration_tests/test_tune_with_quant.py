# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""DPO of adapters on quantized weights: the codes are the reference, and stay as they are."""

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_models import init, llama
from dovetail_quant import Spec, apply, plan, qlora
from dovetail_train import Trainer
from dovetail_tune import AdaptersOff, Frozen, Twin, dpo, mean_loss, token_logps

CONFIG = llama(vocab_size=53, embed=32, depth=1, heads=4, kv_heads=2, mlp=32)


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 53, (4, 10), dtype=np.int32)
    ids[1::2, :4] = ids[::2, :4]
    mask = np.ones((4, 9), np.float32)
    mask[:, :3] = 0
    mask[1, 6:] = 0
    pair_ids = np.array([5, 5, 2, 2], np.int32)
    return {"tokens": ids[:, :-1], "targets": ids[:, 1:], "mask": mask, "pair_ids": pair_ids}


@pytest.fixture(scope="module", params=["int8", "int4"])
def adapted(request):
    """A quantized model with adapters that change its answers."""
    model = init(CONFIG, seed=0)
    spec = Spec(weight="int4", group=16) if request.param == "int4" else Spec()
    quantized = apply(model, plan(model, [("layers.**", spec)]))
    model = qlora.insert(quantized, rank=3, alpha=6.0, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(3)
    state = nnx.state(model, nnx.LoRAParam)
    moved = jax.tree.map(lambda p: p + 0.2 * rng.standard_normal(p.shape, np.float32), state)
    nnx.update(model, moved)
    return model


@pytest.mark.thorough
def test_adapters_off_is_the_removed_model_a_twin_and_a_field(adapted, batch):
    base = qlora.remove(adapted)
    rows = np.asarray(token_logps(base, batch).logprob.sum(1))
    assert np.abs(rows - token_logps(adapted, batch).logprob.sum(1)).max() > 0.1
    field, _ = mean_loss(dpo())(adapted, batch | {"ref_logps": rows})
    off, _ = mean_loss(dpo(reference=AdaptersOff()))(adapted, batch)
    twin, _ = mean_loss(dpo(reference=Frozen()))(Twin(adapted, base), batch)
    assert abs(float(field) - np.log(2)) > 1e-3
    # Each operation is a program of its own outside of jit, and the adapters add 0.
    assert float(off) == float(twin) == float(field)


@pytest.mark.thorough
def test_training_moves_the_adapters_and_no_code(adapted, batch):
    trainer = Trainer(
        optax.adam(1e-2), dpo(reference=AdaptersOff()), trainable=nnx.LoRAParam, accumulate=2
    )
    state, losses = trainer.init(adapted), []
    for _ in range(4):
        state, metrics = trainer.step(state, batch)
        losses.append(metrics.read()["loss"])
    assert losses[-1] < losses[0] - 1e-2
    trained = trainer.model(state)
    before, after = (jax.tree.leaves(nnx.state(qlora.remove(m))) for m in (adapted, trained))
    assert len(before) == len(after) > 0
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(
        *(jax.tree.leaves(nnx.state(m, nnx.LoRAParam)) for m in (adapted, trained)), strict=True
    ):
        assert (np.asarray(one) != np.asarray(other)).any()

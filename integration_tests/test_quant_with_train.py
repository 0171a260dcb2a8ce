# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rules written for Qwix on real decoders, and training with products of codes by the trainer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import qwix
from flax import nnx

from dovetail_models import init, llama, mixtral
from dovetail_quant import Spec, apply, freeze, from_qwix, plan, qat, qt
from dovetail_train import Trainer, lm_loss

pytestmark = pytest.mark.thorough

SIZES = {"vocab_size": 61, "embed": 32, "depth": 2, "heads": 4, "kv_heads": 2, "mlp": 64}
FAMILIES = {
    "llama": lambda: llama(**SIZES),
    "mixtral": lambda: mixtral(**SIZES, experts=4, top_k=2),
}
of_families = pytest.mark.parametrize("family", FAMILIES)
TOKENS = np.random.default_rng(0).integers(0, 61, (4, 17)).astype(np.int32)
BATCH = {"tokens": TOKENS[:, :-1], "targets": TOKENS[:, 1:], "mask": np.ones((4, 16), np.float32)}


@of_families
def test_rules_of_qwix_quantize_the_feed_forward_layers_of_a_decoder(family):
    options = {"weight_qtype": "int4", "act_qtype": "int4", "tile_size": 16}
    options["weight_calibration_method"] = "rms,7"
    model = init(FAMILIES[family](), seed=0)
    rule = qwix.QuantizationRule(module_path=r"layers_\d+/mlp/.*", **options)
    chosen = from_qwix(model, [rule])
    inner = "mlp.experts." if family == "mixtral" else "mlp."
    names = [f"layers.{i}.{inner}{name}" for i in range(2) for name in ("gate", "up", "down")]
    assert set(names) <= set(chosen.specs)
    assert all(path.split(".")[2] == "mlp" for path in chosen.specs)
    assert set(chosen.specs.values()) == {Spec(weight="int4", group=16, act="int4", rms=7.0)}
    # Of sites with one input no number crosses a boundary of rounding: only sums differ.
    rule = qwix.QuantizationRule(module_path=r"layers_1/mlp/(experts/)?(gate|up)", **options)
    chosen = from_qwix(model, [rule])
    assert len(chosen.specs) == 2
    forward = nnx.jit(lambda model: model(TOKENS))  # a call by itself compiles a hundred programs
    logits, wanted = forward(apply(model, chosen)), forward(qat(model, chosen, TOKENS))
    np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-6)
    assert jnp.abs(logits - forward(model)).max() > 1e-3


def losses(model, steps=12, **options):
    trainer = Trainer(optax.adam(1e-2), lm_loss(), **options)
    state, values = trainer.init(model), []
    for _ in range(steps):
        state, metrics = trainer.step(state, BATCH)
        values.append(metrics.read()["loss"])
    return values, trainer.model(state)


@pytest.mark.thorough("it trains a decoder")
@pytest.mark.capability("decoders train with int8 products, forward and backward")
@pytest.mark.parametrize("family", ["llama", pytest.param("mixtral", marks=pytest.mark.slow)])
def test_a_decoder_trains_with_products_of_codes(family):
    model = init(FAMILIES[family](), seed=0)
    chosen = plan(model, [("layers.**.{q,k,v,o,gate,up,down}", Spec(act="int8"))])
    coded = qt(model, chosen, TOKENS, gradients="int8", stochastic=True)
    exact, _ = losses(model)
    found, trained = losses(coded)
    assert exact[-1] < exact[0] - 1.5
    # The same curve: int8 with stochastic gradients is within 5% of it over these steps.
    np.testing.assert_allclose(found, exact, rtol=0.05)
    assert found != exact
    again, _ = losses(coded)
    assert again == found  # the noise has no state
    halves, _ = losses(coded, accumulate=2)
    np.testing.assert_allclose(halves, exact, rtol=0.05)
    frozen = freeze(trained)
    loss = nnx.jit(lambda model: lm_loss()(model, BATCH, key=jax.random.key(0)))(frozen)
    assert float(loss[0] / loss[1]) < exact[-2]


def test_scanned_layers_train_alike():
    model = init(FAMILIES["llama"](), seed=0)
    chosen = plan(model, [("layers.**.{q,k,v,o,gate,up,down}", Spec(act="int8"))])
    coded = qt(model, chosen, TOKENS, gradients="int8")
    unrolled, _ = losses(coded, steps=4)
    scanned, _ = losses(coded.configure(scan=True), steps=4)
    # A sum rounded otherwise moves a number across a boundary of int8 now and then.
    np.testing.assert_allclose(scanned, unrolled, rtol=2e-3)
    assert isinstance(coded, nnx.Module)

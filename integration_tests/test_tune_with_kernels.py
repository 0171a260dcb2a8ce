# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Post-training losses with the operations of dovetail-kernels: here, and lowered for CUDA."""

import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AbstractDevice, AbstractMesh

import accelerator_step
import dovetail_models as models
from dovetail_kernels import attention, linear_logprobs
from dovetail_models import abstract, cast, init, llama
from dovetail_train import abstract_mesh
from dovetail_tune import dpo, mean_loss, token_logps

SIZES = {"vocab_size": 53, "embed": 24, "depth": 2, "heads": 4, "kv_heads": 2, "mlp": 20}
CONFIGS = {
    "untied": llama(**SIZES),
    "tied": models.qwen2(**SIZES, tie=True),
    "soft cap": models.gemma2(
        **SIZES, head_dim=8, window=4, query_scalar=6.0, score_cap=2.0, logit_cap=3.0
    ),
}
KERNELS = functools.partial(token_logps, logprobs=linear_logprobs, attention=attention)
H100 = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=None, platform="cuda")


def _batch(rows=4, length=13):
    """Pairs of unequal rows, with padding and a masked target that is no token."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 53, (rows, length + 1), dtype=np.int32)
    ends = rng.integers(8, length + 1, rows)
    index = np.broadcast_to(np.arange(length, dtype=np.int32), (rows, length))
    real = index < ends[:, None]
    mask = (real & (index >= 4)).astype(np.float32)
    return {
        "tokens": np.where(real, ids[:, :-1], 0),
        "targets": np.where(mask > 0, ids[:, 1:], -100),
        "mask": mask,
        "segment_ids": real.astype(np.int32),
        "positions": np.where(real, index, 0),
        "ref_logps": -(mask.sum(1) * rng.uniform(3, 5, rows)).astype(np.float32),
    }


def _random(config):
    """A model without the ones and zeros that hide scales and biases."""
    model = init(config, seed=0)
    rng = np.random.default_rng(1)
    state = nnx.state(model, nnx.Param)
    moved = jax.tree.map(lambda p: p + 0.1 * rng.standard_normal(p.shape, np.float32), state)
    nnx.update(model, moved)
    return model


def _of_float64_head(model, batch, temperature):
    """Log-probabilities and entropies of the model's own features, with the head in float64."""
    where = {name: jnp.asarray(batch[name]) for name in ("positions", "segment_ids")}
    x, _ = model.features(jnp.asarray(batch["tokens"]), **where)
    weight, cap = model.head_weight()
    logits = np.asarray(x, np.float64) @ np.asarray(weight, np.float64)
    logits = (logits if cap is None else cap * np.tanh(logits / cap)) / temperature
    log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
    mask = batch["mask"] > 0
    picked = np.take_along_axis(log_p, np.where(mask, batch["targets"], 0)[..., None], -1)[..., 0]
    return np.where(mask, picked, 0), np.where(mask, -(np.exp(log_p) * log_p).sum(-1), 0)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", CONFIGS)
def test_scores_are_those_of_the_logits(name, dtype):
    model, batch = cast(_random(CONFIGS[name]), dtype), _batch()
    want = _of_float64_head(model, batch, 0.7)
    operation = functools.partial(token_logps, logprobs=linear_logprobs)
    scores = {"default": token_logps, "kernels": operation}
    for who, scorer in scores.items():
        got = scorer(model, batch, temperature=0.7, entropy=True)
        # float32 sums of 24 products. By default logits of size 3 are rounded to bfloat16, 2**-8
        # of their size, and divided by the temperature.
        exact = dtype == jnp.float32 or who == "kernels"
        atol = 2e-5 if exact else 3 / 0.7 * 2**-8 * 2
        for own, expected in zip(got, want, strict=True):
            np.testing.assert_allclose(own, expected, rtol=0, atol=atol, err_msg=who)


@pytest.mark.thorough
@pytest.mark.parametrize("name", CONFIGS)
def test_a_preference_loss_and_its_gradients_do_not_change(name):
    model, batch = _random(CONFIGS[name]), _batch()

    def gradients(scorer):
        loss = mean_loss(dpo(scorer=scorer))
        (value, _), grads = nnx.jit(nnx.value_and_grad(loss, has_aux=True))(model, batch)
        return value, dict(nnx.to_flat_state(grads))

    (value, wanted), (ours, got) = gradients(token_logps), gradients(KERNELS)
    # float32 in other orders of summation, through two layers.
    np.testing.assert_allclose(ours, value, rtol=1e-5)
    for path, expected in wanted.items():
        scale = float(jnp.abs(expected[...]).max())
        np.testing.assert_allclose(
            got[path][...], expected[...], rtol=0, atol=2e-5 * scale + 1e-9, err_msg=str(path)
        )


@pytest.mark.parametrize("name", CONFIGS)
def test_a_preference_loss_is_exported_for_cuda(name):
    graph, params = nnx.split(cast(abstract(CONFIGS[name]), jnp.bfloat16))
    shapes = {k: jax.ShapeDtypeStruct(x.shape, x.dtype) for k, x in _batch(length=16).items()}

    def value(params, batch):
        return mean_loss(dpo(scorer=KERNELS))(nnx.merge(graph, params), batch)[0]

    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=H100)):
        program = jax.export.export(jax.jit(jax.grad(value)), platforms=("cuda",))(params, shapes)
    assert program.platforms == ("cuda",)
    assert [x.dtype for x in program.out_avals] == [x.dtype for x in jax.tree.leaves(params)]
    tokens = 4 * 16
    assert f"tensor<{tokens}x53xf32>" in program.mlir_module() or "while" in program.mlir_module()


STEP = "tune.preference-llama-125m"


def test_the_step_of_the_accelerator_session_lowers_for_a_gpu_with_cudnn(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    step, function = accelerator_step.load(STEP)
    sizes, rows, length = (step.full[key] for key in ("sizes", "rows", "length"))
    module = sys.modules[function.__module__]
    config = llama(**sizes, kv_heads=sizes["heads"], tie=True)
    mesh = abstract_mesh(1, device="H100")
    trainer = module.trainer(module.preference(), mesh=mesh)
    lowered = trainer.program(abstract(config), module.batch(config, rows, length)).lower("cuda")
    queries = f"tensor<{rows}x{length}x{sizes['heads']}x64xbf16>"
    outline = "@dovetail_kernels_outline_of_cudnn_attention"
    for call in (f"{outline}(", f"{outline}_gradient("):
        assert [x for x in lowered.as_text().splitlines() if call in x and queries in x], call


@pytest.mark.thorough
def test_the_step_of_the_accelerator_session_runs_on_this_cpu(monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [str(accelerator_step.ROOT / "scripts" / "accelerator"), STEP])
    step, function = accelerator_step.load(STEP)
    function(**step.tiny)
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert line["ratio"] > 0
    assert line["losses"][1] < line["losses"][0] == pytest.approx(np.log(2), rel=1e-2)

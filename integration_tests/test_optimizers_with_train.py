# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer takes every optimizer of dovetail-optim, on one device and on eight alike."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import forced_devices
import warm_start
from dovetail_models import init, llama, mixtral
from dovetail_optim import compress, decay, explain, guard, muon, route, soap, split_master, wsd
from dovetail_optim.compressing.master import join
from dovetail_train import Precision, Trainer

pytestmark = pytest.mark.thorough

# Pieces of the large arrays of the state. Of three kernels that are split along their inputs: a
# momentum; M, V and the bases of both sides; codes of two moments. The bases of the outputs have no
# axis that is split. The trainer's own rule knows the axes of what is shaped as a parameter alone.
PIECES = {
    "one": [1] * 9,
    "eight": [1] * 4 + [4] * 5,
    "derived": [1] * 2 + [4] * 7,
    "zero": [2] * 2 + [8] * 7,
}


def _train(*cases):
    program = Path(__file__).parent / "programs" / "optimizers_sharded.py"
    done = warm_start.run([program, *cases], env=forced_devices.environment(8))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.thorough("programs on eight devices")
@pytest.mark.capability("Muon, SOAP and 8-bit states in the trainer on eight devices")
@pytest.mark.parametrize(
    "cases", [["zero"], pytest.param(["eight", "derived"], marks=pytest.mark.slow)]
)
def test_eight_devices_learn_as_one_with_the_state_in_as_many_pieces(cases):
    runs = _train("one", *cases)
    losses = runs["one"]["losses"]
    # From the third on: the first makes SOAP's bases, and the second is its first of warmup.
    assert losses[3] < losses[2] < losses[0]
    for case, run in runs.items():
        # Sums of float32 in another order, after which a code of 8 bits may be its neighbour (6 %).
        np.testing.assert_allclose(run["losses"], losses, rtol=1e-3, err_msg=case)
        assert run["pieces"] == PIECES[case], case


def _bfloat16(model):
    state = nnx.state(model, nnx.Param)
    nnx.update(model, jax.tree.map(lambda x: x.astype(jnp.bfloat16), state))
    return model


def _mlp():
    rngs = nnx.Rngs(0)
    return nnx.Sequential(nnx.Linear(8, 16, rngs=rngs), nnx.tanh, nnx.Linear(16, 1, rngs=rngs))


def _error(model, batch, *, key):
    y = model(batch["x"].astype(jnp.bfloat16)).astype(jnp.float32)
    return ((y - batch["y"]) ** 2).sum(), batch["y"].size * 1.0


def test_bfloat16_with_its_remainders_trains_as_float32_masters_do():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 8)).astype("f4")
    batch = {"x": x, "y": np.sin(x).sum(1, keepdims=True)}
    start = nnx.to_pure_dict(nnx.state(_bfloat16(_mlp()), nnx.Param))
    exact = _mlp()
    nnx.update(exact, nnx.state(_bfloat16(_mlp()), nnx.Param))  # the same values, in float32
    nnx.update(exact, jax.tree.map(lambda p: p.astype(jnp.float32), nnx.state(exact, nnx.Param)))
    masters = Trainer(optax.adamw(1e-4), _error, precision=Precision(compute="bfloat16"))
    split = Trainer(split_master(optax.adamw(1e-4)), _error)
    plain = Trainer(optax.adamw(1e-4), _error)
    states = [masters.init(exact), split.init(_bfloat16(_mlp())), plain.init(_bfloat16(_mlp()))]
    for _ in range(30):
        states = [
            trainer.step(state, batch)[0]
            for trainer, state in zip((masters, split, plain), states, strict=True)
        ]
    want = jax.tree.leaves(states[0].params)
    found = jax.tree.leaves(join(states[1].params, states[1].opt))
    lost = jax.tree.leaves(states[2].params)
    moved = [
        np.abs(w - np.asarray(s, np.float32)).max()
        for w, s in zip(want, jax.tree.leaves(start), strict=True)
    ]
    for w, f, p, far in zip(want, found, lost, moved, strict=True):
        # Thirty steps whose gradients round alike, but for products that are fused otherwise.
        np.testing.assert_allclose(f, w, rtol=0, atol=0.02 * far)
        if w.ndim == 2:  # a bias begins at 0, where bfloat16 loses nothing
            assert np.abs(np.asarray(p, np.float32) - w).max() > 0.2 * far


SIZES = {"vocab_size": 31, "embed": 16, "depth": 1, "heads": 4, "kv_heads": 2, "mlp": 24}
MATRICES = "layers.*.attn.{q,k,v,o}.kernel"


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_the_rates_of_every_group_of_a_model_are_shown(family):
    config = llama(**SIZES) if family == "llama" else mixtral(**SIZES, experts=4, top_k=2)
    params = nnx.state(init(config, seed=0), nnx.Param)
    schedule = wsd(0.02, warmup=2, total=20, cooldown=5)
    rules = [
        (MATRICES, muon(schedule, weight_decay=0.1)),
        ("**.scale", optax.chain(optax.sgd(optax.constant_schedule(0.5)), decay(0.01, where="**"))),
        ("**", optax.adamw(3e-4, weight_decay=0.2), "Adam"),
    ]
    jax.eval_shape(route(rules).init, params)
    rows = explain(rules, params).rows
    assert {r.pattern: r.label for r in rows}["**"] == "Adam"
    assert {(r.pattern, r.learning_rate, r.weight_decay) for r in rows} == {
        (MATRICES, "0 to 0.02 to 0 in 20 steps", "0.1"),
        ("**.scale", "constant_schedule", "0.01"),
        ("**", "0.0003", "0.2"),
    }


def test_the_rates_of_each_step_are_those_of_the_schedules():
    peak, cosine = wsd(0.02, warmup=4, total=20, cooldown=5), optax.cosine_decay_schedule(0.1, 8)
    coupled = {"mode": "coupled", "where": "**"}
    rules = [
        ("layers.0.kernel", muon(peak, weight_decay=0.1), "muon"),
        ("layers.2.kernel", soap(cosine)),
        ("layers.0.bias", compress(optax.adamw(3e-4)), "small"),
        ("**", optax.chain(optax.sgd(peak), decay(0.1, learning_rate=peak, **coupled))),
    ]
    tx = optax.chain(optax.clip_by_global_norm(1.0), guard(route(rules)))
    trainer = Trainer(tx, _error)
    state = trainer.init(_mlp())
    x = np.random.default_rng(0).normal(size=(16, 8)).astype("f4")
    for step in range(3):
        state, metrics = trainer.step(state, {"x": x, "y": x[:, :1]})
        rates = {k: v for k, v in metrics.read().items() if k.startswith("learning_rate")}
        warm, cool = 0.02 * step / 4, 0.1 * 0.5 * (1 + np.cos(np.pi * step / 8))
        wanted = {"muon": warm, "layers.2.kernel": cool, "small": 3e-4, "**": warm}
        assert rates.keys() == {f"learning_rate/{name}" for name in wanted}
        for name, rate in wanted.items():
            np.testing.assert_allclose(rates[f"learning_rate/{name}"], rate, rtol=1e-6)

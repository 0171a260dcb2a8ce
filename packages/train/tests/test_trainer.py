# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import Precision, State, Trainer, lm_loss, make_mesh
from dovetail_train.loop.clock import Rates
from dovetail_train.testing import TinyDecoder


def _decoder():
    return TinyDecoder(vocab_size=13, width=8, depth=1, rngs=nnx.Rngs(0))


def _tokens(rng, rows=4, length=6):
    tokens = rng.integers(0, 13, (rows, length + 1), dtype=np.int32)
    mask = (rng.random((rows, length)) < 0.7).astype("f4")
    return {"tokens": tokens[:, :-1], "targets": tokens[:, 1:], "mask": mask}


class _Mlp(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.up, self.down = nnx.Linear(3, 7, rngs=rngs), nnx.Linear(7, 2, rngs=rngs)

    def __call__(self, x):
        return self.down(jnp.tanh(self.up(x)))


def _squares(model, batch, *, key):
    error = (model(batch["x"]) - batch["y"]) ** 2
    return error.sum(), jnp.float32(error.size)


def _rows(rng, rows=8):
    return {k: rng.normal(size=(rows, n)).astype("f4") for k, n in (("x", 3), ("y", 2))}


@pytest.mark.thorough
@pytest.mark.capability("the training step")
def test_steps_are_those_of_a_loop_written_by_hand():
    rng = np.random.default_rng(0)
    tx = optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(3e-2, weight_decay=0.1))
    trainer = Trainer(tx, _squares)
    state = trainer.init(_Mlp())

    def forward(p, x):
        hidden = jnp.tanh(x @ p["up"]["kernel"] + p["up"]["bias"])
        return hidden @ p["down"]["kernel"] + p["down"]["bias"]

    @jax.jit
    def by_hand(params, opt, batch):
        loss, grads = jax.value_and_grad(
            lambda p: ((forward(p, batch["x"]) - batch["y"]) ** 2).mean()
        )(params)
        updates, opt = tx.update(grads, opt, params)
        return optax.apply_updates(params, updates), opt, loss

    params = jax.tree.map(np.asarray, state.params)
    opt = tx.init(params)
    for _ in range(3):
        batch = _rows(rng)
        state, metrics = trainer.step(state, batch)
        params, opt, loss = by_hand(params, opt, batch)
        assert metrics.read()["loss"] == pytest.approx(float(loss), rel=1e-6)
    for got, want in zip(jax.tree.leaves(state.params), jax.tree.leaves(params), strict=True):
        # Adam divides by the gradient's own size: an epsilon of it moves a parameter by rate × eps.
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert int(state.step) == 3


@pytest.mark.thorough
def test_a_decoder_step_is_that_of_its_full_logits():
    batch = _tokens(np.random.default_rng(1))
    trainer = Trainer(optax.sgd(1.0), lm_loss(chunk=8))  # two chunks of two positions, and two more
    state = trainer.init(_decoder())
    before = jax.tree.map(np.asarray, state.params)
    graphdef, rest = nnx.split(_decoder())

    def loss(rest):
        model = nnx.merge(graphdef, rest)
        logits = model.head(model.features(batch["tokens"])[0])
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
        return (nll * batch["mask"]).sum() / batch["mask"].sum()

    value, grads = jax.jit(jax.value_and_grad(loss))(rest)
    state, metrics = trainer.step(state, batch)
    assert metrics.read()["loss"] == pytest.approx(float(value), rel=1e-6)
    moved = jax.tree.map(lambda a, b: a - np.asarray(b), before, state.params)
    for got, want in zip(jax.tree.leaves(moved), jax.tree.leaves(grads), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_every_leaf_keeps_its_dtype_and_the_loss_sees_the_compute_dtype():
    seen = {}

    def loss(model, batch, *, key):
        seen.update(jax.tree.map(lambda x: x.dtype, nnx.to_pure_dict(nnx.state(model, nnx.Param))))
        return lm_loss()(model, batch, key=key)

    precision = Precision(compute="bfloat16", keep="**.norm.*")
    trainer = Trainer(optax.adamw(1e-3), loss, precision=precision)
    state = trainer.init(_decoder())
    before = jax.tree.map(lambda x: x.dtype, state)
    state, _ = trainer.step(state, _tokens(np.random.default_rng(0)))
    assert jax.tree.map(lambda x: x.dtype, state) == before
    assert before.params["embed"]["embedding"] == jnp.float32
    assert seen["embed"]["embedding"] == seen["layers"][0]["up"]["kernel"] == jnp.bfloat16
    assert seen["norm"]["scale"] == seen["layers"][0]["norm"]["scale"] == jnp.float32
    assert trainer.model(state, cast=True).out.kernel[...].dtype == jnp.bfloat16
    assert trainer.model(state).out.kernel[...].dtype == jnp.float32


@pytest.mark.thorough
def test_frozen_parameters_stay_and_the_others_move():
    class Adapted(nnx.Module):
        def __init__(self):
            self.base = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
            self.lora = nnx.LoRA(3, 2, 2, rngs=nnx.Rngs(1))

        def __call__(self, x):
            return self.base(x) + self.lora(x)

    trainer = Trainer(optax.sgd(0.1), _squares, trainable=nnx.LoRAParam)
    model = Adapted()
    state, _ = trainer.step(trainer.init(model), _rows(np.random.default_rng(0)))
    trained = trainer.model(state)
    np.testing.assert_array_equal(trained.base.kernel[...], model.base.kernel[...])
    assert np.abs(trained.lora.lora_b[...] - model.lora.lora_b[...]).max() > 0


@pytest.mark.thorough("programs on eight devices")
@pytest.mark.capability("parameters and state sharded over data and fsdp axes")
@pytest.mark.parametrize(
    "names", [["data", "fsdp"], pytest.param(["both"], marks=pytest.mark.slow)], ids=" ".join
)
def test_eight_devices_give_the_losses_of_one_and_hold_an_eighth(on_eight_devices, names):
    runs = on_eight_devices("meshes.py", "one", *names)
    for name in names:
        # Sums over 8 devices are in another order; Adam keeps the difference at that size.
        np.testing.assert_allclose(runs[name]["losses"], runs["one"]["losses"], rtol=2e-5)
        np.testing.assert_allclose(runs[name]["embedding"], runs["one"]["embedding"], atol=5e-5)
    for run in runs.values():
        assert run["planned"] == run["live"]
    parts = {name: run["bytes"] / run["bytes_per_device"] for name, run in runs.items()}
    expected = {"one": 1, "data": 1, "fsdp": 8, "both": 4}
    assert parts == {name: expected[name] for name in ["one", *names]}


@pytest.mark.capability("the training step", on=("cuda", "tpu"))
def test_the_step_lowers_for_accelerators_from_here():
    trainer = Trainer(optax.adamw(1e-3), lm_loss(chunk=8), accumulate=2)
    program = trainer.program(_decoder(), _tokens(np.random.default_rng(0)))
    with jax.set_mesh(trainer.mesh):
        traced = jax.jit(
            program.fn, donate_argnums=program.donate, out_shardings=program.out_shardings
        ).trace(*program.args)
        for platform in ("cuda", "tpu"):
            text = traced.lower(lowering_platforms=(platform,)).as_text()
            assert "module @jit_train_step " in text
            assert "stablehlo.dot_general" in text


@pytest.mark.thorough
def test_initialising_the_same_model_again_compiles_nothing():
    traces = []

    def loss(model, batch, *, key):
        traces.append(1)
        return _squares(model, batch, key=key)

    trainer = Trainer(optax.sgd(0.1), loss)
    for _ in range(2):
        trainer.step(trainer.init(_Mlp()), _rows(np.random.default_rng(0)))
    assert len(traces) == 1
    trainer.step(trainer.init(nnx.Linear(3, 2, rngs=nnx.Rngs(0))), _rows(np.random.default_rng(0)))
    assert len(traces) == 2


def test_the_trainer_does_not_hold_the_models_own_arrays():
    model = _Mlp()
    arrays = [weakref.ref(x) for x in jax.tree.leaves(nnx.state(model))]
    trainer = Trainer(optax.sgd(0.1), _squares)
    state = trainer.init(model)
    del model
    gc.collect()
    assert [x() for x in arrays] == [None] * 4
    assert trainer.model(state).up.kernel[...].shape == (3, 7)


def test_a_batch_that_cannot_be_split_is_refused_with_what_divides():
    trainer = Trainer(optax.sgd(0.1), _squares, accumulate=4)
    state = trainer.init(_Mlp())
    with pytest.raises(ValueError, match=r"divisible by accumulate.*4 × 1 = 4, got rows=10; use 8"):
        trainer.step(state, _rows(np.random.default_rng(0), rows=10))
    with pytest.raises(ValueError, match=r"divisible by accumulate.*got rows=0; use 4 rows"):
        trainer.step(state, _rows(np.random.default_rng(0), rows=0))


@pytest.mark.parametrize("y", [np.zeros((3, 2), "f4"), np.float32(1.0)])
def test_arrays_of_a_batch_must_have_the_same_rows(y):
    trainer = Trainer(optax.sgd(0.1), _squares)
    with pytest.raises(
        ValueError, match=r"same number of rows, got \{'x': \(4, 3\), 'y'.*give each"
    ):
        trainer.place({"x": np.zeros((4, 3), "f4"), "y": y})


def test_a_state_of_another_model_is_refused():
    trainer = Trainer(optax.sgd(0.1), _squares)
    state = trainer.init(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    trainer.init(_Mlp())
    with pytest.raises(
        ValueError, match=r"must be of the model.*5 leaves where it has 7.*call init"
    ):
        trainer.step(state, _rows(np.random.default_rng(0)))


def test_a_step_before_init_is_refused():
    with pytest.raises(RuntimeError, match=r"must know the model.*of init or fit; write state ="):
        Trainer(optax.sgd(0.1), _squares).model(
            State(step=0, params={}, frozen={}, rest={}, opt=(), skips=None)
        )


def test_accumulate_is_positive():
    with pytest.raises(
        ValueError, match="must be at least 1, got accumulate=0; write accumulate=1"
    ):
        Trainer(optax.sgd(0.1), _squares, accumulate=0)


def test_several_processes_need_a_mesh(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    with pytest.raises(ValueError, match=r"need a mesh.*mesh=None with 3 proc.*mesh=make_mesh\(\)"):
        Trainer(optax.sgd(0.1), _squares)


def test_mfu_is_counted_from_the_loss_unless_told():
    batch = _rows(np.random.default_rng(0))
    forward = 2 * 8 * (3 * 7 + 7 * 2)
    # Forward, gradient of both kernels, and of the hidden layer: not of the input.
    counted = 2 * forward + 2 * 8 * 7 * 2
    for given, expected in (
        (None, Rates(flops=float(counted), recomputed=0.0, peak_flops=1e9)),
        (5.0, Rates(flops=5.0, peak_flops=1e9)),
    ):
        mesh = make_mesh(devices=jax.devices()[:1])
        trainer = Trainer(optax.sgd(0.1), _squares, mesh=mesh, flops=given, peak_flops=1e9)
        assert trainer.rates(trainer.init(_Mlp()), batch) == expected
    trainer = Trainer(optax.sgd(0.1), _squares, accumulate=2)
    assert trainer.rates(trainer.init(_Mlp()), batch) == Rates()  # a CPU has no peak


@pytest.mark.capability("a step without mfu tells what could not be counted and how to state it")
def test_work_that_cannot_be_counted_leaves_mfu_out_with_a_warning(caplog):
    def kernel(x):
        return jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def loss(model, batch, *, key, kernel=kernel):
        hidden = jax.lax.stop_gradient(kernel(jax.lax.stop_gradient(model(batch["x"]))))
        return (model(batch["x"]) * hidden).sum(), 8.0

    def rates(loss):
        mesh = make_mesh(devices=jax.devices()[:1])
        trainer = Trainer(optax.sgd(0.1), loss, mesh=mesh, peak_flops=1e9)
        return trainer.rates(trainer.init(_Mlp()), _rows(np.random.default_rng(0)))

    assert rates(loss) == Rates(peak_flops=1e9)
    assert caplog.messages == [
        "mfu is left out: could not be counted: pure_callback x 1; state it by jax.named_scope: "
        '"flops=70,again=0" with its FLOPs around the call; or pass Trainer(flops=)'
    ]
    named = functools.partial(loss, kernel=jax.named_scope("flops=70,again=0")(kernel))
    plain = functools.partial(loss, kernel=lambda x: x)
    assert rates(named).flops == rates(plain).flops + 70
    assert len(caplog.messages) == 1


def test_reprs_are_one_line_of_sizes_without_arrays():
    def loss(model, batch, *, key):
        return model(batch["x"]).sum(), 4.0

    trainer = Trainer(optax.sgd(0.1, momentum=0.9), loss, accumulate=2)
    assert repr(trainer) == (
        "Trainer(mesh=one device, compute='float32', accumulate=2, ema=None, guard=None)"
    )
    model, batch = nnx.Linear(3, 5, rngs=nnx.Rngs(0)), {"x": np.ones((4, 3), np.float32)}
    state = trainer.init(model)
    text = "State(params=2 arrays of 20 numbers, opt=2 arrays of 20 numbers)"
    assert repr(state) == text
    _, metrics = trainer.step(state, batch)
    assert repr(state) == text  # its buffers are donated
    assert repr(metrics).startswith("Metrics(")
    assert "loss, " in repr(metrics)
    program = repr(trainer.program(model, batch))
    assert "accumulate=2" in program
    assert program.endswith("batch={'x': 'float32[4, 3]'})")
    result = trainer.fit(model, [batch] * 2, steps=2)
    assert repr(result).startswith(
        f"Result(step=2, interrupted=False, loss={result.scalars['loss']:.4g}"
    )
    assert len(repr(result)) < 120

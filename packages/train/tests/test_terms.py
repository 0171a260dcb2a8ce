# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np

from dovetail_train import Metric, Precision, Trainer
from dovetail_train.step.terms import check_loss, terms_of

ROWS, WIDTH = 16, 5


def _batch(rng, mask):
    return {
        "x": rng.normal(size=(ROWS, 3, WIDTH)).astype("f4"),
        "y": rng.normal(size=(ROWS, 3)).astype("f4"),
        "mask": mask.astype("f4"),
        "bonus": rng.random((ROWS, 3)).astype("f4"),
    }


def _loss(model, batch, *, key):
    out = model(batch["x"])[..., 0]
    return {
        "fit": ((batch["mask"] * (out - batch["y"]) ** 2).sum(), batch["mask"].sum()),
        "size": ((batch["bonus"] * out**4).sum(), batch["bonus"].sum()),
        "ignored": (jnp.log(-jnp.ones(())), jnp.ones(())),  # NaN
    }


WEIGHTS = {"size": 0.25, "ignored": 0.0}


def _expected(kernel, batch):
    """Loss and gradient of Σ wₖ·sumₖ/Nₖ in float64, by hand."""
    x, y, mask, bonus = (batch[k].astype(np.float64) for k in ("x", "y", "mask", "bonus"))
    out = x @ kernel.astype(np.float64)[:, 0]
    fit, size = (mask * (out - y) ** 2).sum(), (bonus * out**4).sum()
    n_fit, n_size = mask.sum(), bonus.sum()
    d_out = 0.25 * bonus * 4 * out**3 / n_size
    loss = 0.25 * size / n_size
    if n_fit:
        d_out += mask * 2 * (out - y) / n_fit
        loss += fit / n_fit
    return loss, np.einsum("bsw,bs->w", x, d_out)


def _model():
    return nnx.Linear(WIDTH, 1, use_bias=False, rngs=nnx.Rngs(3))


@pytest.fixture(scope="module")
def trainers():
    # SGD at rate 1: what the parameters lose is the gradient.
    return {k: Trainer(optax.sgd(1.0), _loss, weights=WEIGHTS, accumulate=k) for k in (1, 2, 4, 8)}


masks = st_np.arrays(np.bool_, (ROWS, 3), elements=st.booleans(), fill=st.nothing())


@pytest.mark.costly("no smaller test proves the capability")
@pytest.mark.capability("exact accumulation")
@settings(max_examples=15, deadline=None)
@given(mask=masks, seed=st.integers(0, 99))
def test_any_number_of_microbatches_gives_the_gradient_of_the_whole_batch(trainers, mask, seed):
    batch = _batch(np.random.default_rng(seed), mask)
    kernel = np.asarray(_model().kernel[...])
    loss, grad = _expected(kernel, batch)
    for trainer in trainers.values():
        after, metrics = trainer.step(trainer.init(_model()), batch)
        # 48 terms are added up in float32, in another order: a few epsilons of the largest.
        close = {"rtol": 2e-5, "atol": 2e-6 * np.abs(grad).max()}
        np.testing.assert_allclose(kernel[:, 0] - after.params["kernel"][:, 0], grad, **close)
        scalars = metrics.read()
        np.testing.assert_allclose(scalars["loss"], loss, rtol=1e-5)
        np.testing.assert_allclose(scalars["grad_norm"], np.linalg.norm(grad), rtol=1e-5)
        assert scalars["count/fit"] == scalars["tokens"] == mask.sum()


def test_a_mean_of_the_microbatches_means_would_be_another_gradient():
    rng = np.random.default_rng(0)
    batch = _batch(rng, rng.random((ROWS, 3)) < 0.4)
    kernel = np.asarray(_model().kernel[...])
    _, whole = _expected(kernel, batch)
    parts = [{k: v[i::4] for k, v in batch.items()} for i in range(4)]
    means = np.mean([_expected(kernel, part)[1] for part in parts], axis=0)
    assert np.abs(means - whole).max() > 0.02 * np.abs(whole).max()


def test_a_term_without_count_contributes_nothing(trainers):
    batch = _batch(np.random.default_rng(0), np.zeros((ROWS, 3)))
    for trainer in trainers.values():
        scalars = trainer.step(trainer.init(_model()), batch)[1].read()
        assert scalars["count/fit"] == 0
        assert "loss/fit" not in scalars
        assert scalars["loss"] == pytest.approx(0.25 * scalars["loss/size"])


@pytest.mark.thorough
def test_a_metric_is_measured_and_not_trained():
    def loss(model, batch, *, key):
        terms = _loss(model, batch, key=key)
        return {"fit": terms["fit"], "size": Metric(*terms["size"])}

    rng = np.random.default_rng(4)
    batch = _batch(rng, rng.random((ROWS, 3)) < 0.5)
    kernel = np.asarray(_model().kernel[...])
    for accumulate in (1, 4):
        trainer = Trainer(optax.sgd(1.0), loss, accumulate=accumulate)
        after, metrics = trainer.step(trainer.init(_model()), batch)
        scalars = metrics.read()
        out = batch["x"].astype(np.float64) @ kernel[:, 0]
        size = (batch["bonus"] * out**4).sum() / batch["bonus"].sum()
        np.testing.assert_allclose(scalars["loss/size"], size, rtol=1e-5)
        assert scalars["loss"] == scalars["loss/fit"]
        error = batch["mask"] * 2 * (out - batch["y"]) / batch["mask"].sum()
        grad = np.einsum("bsw,bs->w", batch["x"], error)
        np.testing.assert_allclose(
            kernel[:, 0] - after.params["kernel"][:, 0], grad, rtol=2e-5, atol=1e-6
        )
    weighed = Trainer(optax.sgd(1.0), loss, weights={"size": 0.25})
    scalars = weighed.step(weighed.init(_model()), batch)[1].read()
    np.testing.assert_allclose(
        scalars["loss"], scalars["loss/fit"] + 0.25 * scalars["loss/size"], rtol=1e-6
    )


@pytest.mark.thorough
def test_the_counting_pass_costs_no_product():
    batch = _batch(np.random.default_rng(0), np.ones((ROWS, 3)))

    def products(accumulate):
        trainer = Trainer(optax.sgd(1.0), _loss, weights=WEIGHTS, accumulate=accumulate)
        program = trainer.program(nnx.Linear(WIDTH, 1, rngs=nnx.Rngs(0)), batch)
        with jax.set_mesh(trainer.mesh):
            text = jax.jit(program.fn).lower(*program.args).compile().as_text()
        return text.count(" dot(") + text.count("__onednn$matmul")

    assert products(1) == products(4) > 0


class _Noisy(nnx.Module):
    def __init__(self):
        self.norm = nnx.BatchNorm(WIDTH, momentum=0.75, use_scale=False, rngs=nnx.Rngs(0))
        self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(7))
        self.out = nnx.Linear(WIDTH, 1, use_bias=False, rngs=nnx.Rngs(3))

    def __call__(self, x):
        return self.out(self.drop(self.norm(x)))


@pytest.mark.thorough
def test_the_modules_own_state_goes_through_the_microbatches_in_order():
    rng = np.random.default_rng(1)
    batch = _batch(rng, np.ones((ROWS, 3)))
    trainer = Trainer(optax.sgd(0.1), _loss, weights=WEIGHTS, accumulate=4)
    state = trainer.init(_Noisy())
    mean = np.zeros(WIDTH)
    for _ in range(2):
        state, _ = trainer.step(state, batch)
        for i in range(4):  # microbatch i has the rows i mod 4
            mean = 0.75 * mean + 0.25 * batch["x"][i::4].astype(np.float64).mean((0, 1))
    # The counting pass runs the module as well; its state must not count twice.
    np.testing.assert_allclose(state.rest["norm"]["mean"], mean, rtol=1e-4, atol=1e-6)
    assert state.rest["drop"]["rngs"]["count"] == 8


@pytest.mark.thorough
def test_the_transformation_is_given_the_loss():
    def update(updates, state, params=None, *, value, **extra):
        return jax.tree.map(jnp.zeros_like, updates), jnp.asarray(value)

    tx = optax.GradientTransformationExtraArgs(lambda params: jnp.zeros(()), update)
    trainer = Trainer(tx, _loss, weights=WEIGHTS)
    rng = np.random.default_rng(5)
    batch, model = _batch(rng, rng.random((ROWS, 3)) < 0.5), _model()
    state, _ = trainer.step(trainer.init(model), batch)
    # One float32 sum over 48 elements and its order.
    loss = _expected(np.asarray(model.kernel[...]), batch)[0]
    np.testing.assert_allclose(state.opt, loss, rtol=1e-5)


def test_a_step_is_compiled_once():
    traces = []

    def loss(model, batch, *, key):
        traces.append(1)
        return _loss(model, batch, key=key)

    rng = np.random.default_rng(0)
    trainer = Trainer(optax.adamw(optax.linear_schedule(1e-2, 0, 9)), loss, weights=WEIGHTS)
    state = trainer.init(_Noisy())
    for _ in range(3):
        state, _ = trainer.step(state, _batch(rng, np.ones((ROWS, 3))))
    assert len(traces) == 1


@pytest.mark.thorough
def test_the_key_is_that_of_the_seed_and_the_step():
    def loss(model, batch, *, key):
        noise = jax.random.normal(key)
        return (noise + 0 * model(batch["x"]).sum()) * 2, jnp.float32(2)

    trainer = Trainer(optax.sgd(0.1), loss, seed=11, accumulate=2)
    state = trainer.init(_model())
    for step in range(3):
        state, metrics = trainer.step(state, _batch(np.random.default_rng(0), np.ones((ROWS, 3))))
        key = jax.random.fold_in(jax.random.key(11), step)
        assert metrics.read()["loss"] == pytest.approx(float(jax.random.normal(key)))


@pytest.mark.parametrize(
    "value",
    [
        jnp.float32(1),
        (jnp.float32(1),),
        (jnp.ones(3), jnp.float32(3)),
        {"a": (jnp.float32(1), jnp.ones(2))},
        [jnp.float32(1), jnp.float32(2)],
    ],
)
def test_a_loss_that_returns_something_else_is_refused(value):
    with pytest.raises(ValueError, match=r"must return scalars.*, got .*float32.*write for ex"):
        terms_of(value)


def test_weights_of_unknown_terms_are_refused():
    trainer = Trainer(optax.sgd(1.0), _loss, weights={"fitt": 2.0})
    state = trainer.init(_model())
    with pytest.raises(ValueError, match=r"must name terms.*got 'fitt'.*use one of fit, ignored"):
        trainer.step(state, _batch(np.random.default_rng(0), np.ones((ROWS, 3))))


# The compute dtype.

PARAMS = {
    "layers": {0: {"norm": {"scale": jnp.ones(3)}, "up": {"kernel": jnp.full((2, 3), 1.0001)}}},
    "ids": jnp.arange(2),
}


def test_float_leaves_are_cast_but_those_that_keep_names():
    cast = Precision(compute="bfloat16", keep="**.norm.*").cast(PARAMS)
    assert cast["layers"][0]["norm"]["scale"].dtype == jnp.float32
    assert cast["layers"][0]["up"]["kernel"].dtype == jnp.bfloat16
    assert cast["ids"].dtype == jnp.int32
    # 1.0001 is nearer to 1 than to the next bfloat16, 1.0078125.
    np.testing.assert_array_equal(np.asarray(cast["layers"][0]["up"]["kernel"], np.float32), 1.0)


@pytest.mark.thorough
def test_a_variable_that_keeps_its_dtype_is_not_cast():
    class Routed(nnx.Module):
        def __init__(self):
            self.kernel = nnx.Param(jnp.full((3, 2), 1.0001))
            self.router = nnx.Param(jnp.array([1.0001, 2.0]), keep_dtype=True)
            self.frozen = nnx.Param(jnp.array([1.0001, 2.0]), keep_dtype=True)

    seen = {}

    def loss(model, batch, *, key):
        seen.update({n: getattr(model, n).dtype for n in ("kernel", "router", "frozen")})
        return (batch["x"] @ model.kernel[...].astype(jnp.float32)).sum() * model.router[0], 1.0

    precision = Precision(compute="bfloat16")
    trainer = Trainer(
        optax.sgd(0.1), loss, trainable=["kernel", "router"], precision=precision, max_skips=0
    )
    state, _ = trainer.step(trainer.init(Routed()), {"x": np.ones((2, 3), np.float32)})
    assert seen == {"kernel": jnp.bfloat16, "router": jnp.float32, "frozen": jnp.float32}
    model = trainer.model(state, cast=True)
    assert model.kernel.dtype == jnp.bfloat16
    assert {model.router.dtype, model.frozen.dtype} == {jnp.dtype("float32")}


def test_float32_leaves_everything_as_it_came():
    assert Precision(compute="float32").cast(PARAMS) is PARAMS


@pytest.mark.usefixtures("unchecked")
def test_float16_is_refused():
    with pytest.raises(ValueError, match=r"must be .* got compute='float16'.*write Precision"):
        Precision(compute="float16")  # pyright: ignore[reportArgumentType] - the point of the test


def test_a_pattern_that_matches_nothing_is_refused():
    Precision(compute="bfloat16", keep=("**.norm.*", "other")).check(PARAMS, {"other": 1})
    with pytest.raises(ValueError, match=r"must match a parameter, got '\*\*.nrom.\*', which"):
        Precision(compute="bfloat16", keep=("**.norm.*", "**.nrom.*")).check(PARAMS)
    with pytest.raises(ValueError, match=r"a glob, not a regular expression, got .* write a name"):
        Precision(compute="bfloat16", keep=".*")


# Wrong losses and batches. The type checks of the suite answer first, so one case runs in a
# subprocess.


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, batch: 0.0, r"got loss\(model, batch\); write def loss\(model, batch, \*"),
        (lambda batch, *, key: 0.0, r"a loss must take \(model, batch, \*, key\)"),
        (3, "a loss must be a function of"),
    ],
)
def test_a_loss_of_other_arguments_is_refused_with_what_to_write(loss, message):
    with pytest.raises(TypeError, match=message):
        check_loss(loss)


def test_a_trainer_checks_its_loss():
    with pytest.raises(TypeError, match="a loss must take"):
        Trainer(optax.sgd(0.1), lambda model, batch: (np.float32(0), 1.0))

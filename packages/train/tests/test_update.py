# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import Trainer

STEPS = 6


class _Net(nnx.Module):
    """Parameters, statistics and a random stream."""

    def __init__(self):
        rngs = nnx.Rngs(params=0, dropout=1)
        self.up = nnx.Linear(3, 5, rngs=rngs)
        self.norm = nnx.BatchNorm(5, rngs=rngs)
        self.down = nnx.Linear(5, 2, rngs=rngs)

    def __call__(self, x):
        return self.down(self.norm(self.up(x)))


def _loss(model, batch, *, key):
    return (model(batch["x"]) ** 2).sum(), jnp.float32(batch["x"].shape[0])


def _batches(*, bad=None):
    rows = [np.random.default_rng(i).normal(size=(4, 3)).astype("f4") for i in range(STEPS)]
    if bad is not None:
        rows[bad][0, 1] = np.inf
    return [{"x": x} for x in rows]


class _SumOfLosses:
    """A guard that takes every step and adds up the losses."""

    def begin(self):
        return jnp.zeros((), jnp.float32)

    def judge(self, history, *, grad_norm, loss):
        return loss < jnp.inf, history + loss


@pytest.fixture(scope="module")
def trainer():
    tx = optax.adamw(optax.cosine_decay_schedule(1e-1, STEPS))
    return Trainer(tx, _loss, ema=0.75, accumulate=2, guard=_SumOfLosses())


def _run(trainer, batches):
    state = trainer.init(_Net())
    for batch in batches:
        state, _ = trainer.step(state, batch)
    return state


@pytest.mark.thorough
@pytest.mark.parametrize("bad", range(STEPS))
def test_a_bad_step_leaves_every_bit_as_if_its_batch_had_not_been(trainer, bad):
    found = _run(trainer, _batches(bad=bad))
    want = _run(trainer, [batch for i, batch in enumerate(_batches()) if i != bad])
    assert int(found.step) == STEPS == int(want.step) + 1
    assert int(found.skips.total) == 1
    for name in ("params", "rest", "opt", "ema", "guard"):
        jax.tree.map(np.testing.assert_array_equal, getattr(found, name), getattr(want, name))


def test_the_average_is_the_closed_form(trainer):
    state = trainer.init(_Net())
    seen = [np.asarray(state.params["up"]["kernel"], np.float64)]
    for batch in _batches():
        state, _ = trainer.step(state, batch)
        seen.append(np.asarray(state.params["up"]["kernel"], np.float64))
    weights = [0.75**STEPS] + [0.25 * 0.75 ** (STEPS - n) for n in range(1, STEPS + 1)]
    want = sum(w * p for w, p in zip(weights, seen, strict=True))
    # Six float32 updates of numbers around 1.
    np.testing.assert_allclose(state.ema["up"]["kernel"], want, rtol=1e-5, atol=1e-7)
    model = trainer.model(state, ema=True)
    np.testing.assert_array_equal(model.up.kernel[...], state.ema["up"]["kernel"])
    assert model.up.kernel[...].dtype == jnp.float32
    np.testing.assert_array_equal(trainer.model(state).up.kernel[...], seen[-1].astype("f4"))


@pytest.mark.thorough
def test_the_average_of_bfloat16_parameters_moves():
    model = nnx.Linear(3, 2, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    trainer = Trainer(optax.sgd(0.0), _loss, ema=0.75)
    state = trainer.init(model)
    kernel = np.asarray(model.kernel[...], np.float64)
    assert state.ema["kernel"].dtype == np.float32
    np.testing.assert_array_equal(state.ema["kernel"], kernel)
    # Nearer to the parameters than bfloat16 can tell, and still on the way to them.
    state.ema["kernel"] = jnp.asarray(kernel * (1 + 1e-3), jnp.float32)
    state, _ = trainer.step(state, _batches()[0])
    np.testing.assert_allclose(state.ema["kernel"], kernel * (1 + 0.75e-3), rtol=1e-6)
    assert trainer.model(state, ema=True).kernel[...].dtype == jnp.bfloat16


def test_the_norms_are_of_the_parameters_before_and_of_the_update(trainer):
    state = trainer.init(_Net())
    before = jax.tree.map(np.asarray, state.params)
    state, metrics = trainer.step(state, _batches()[0])
    scalars = metrics.read()

    def norm(tree):
        return np.sqrt(sum((np.asarray(x, np.float64) ** 2).sum() for x in jax.tree.leaves(tree)))

    change = jax.tree.map(lambda a, b: np.asarray(b, np.float64) - a, before, state.params)
    np.testing.assert_allclose(scalars["param_norm"], norm(before), rtol=1e-5)
    # The change is read off parameters of about 1, of which it is a tenth.
    np.testing.assert_allclose(scalars["update_norm"], norm(change), rtol=1e-4)


@pytest.mark.parametrize("ema", [0.0, 1.0, -0.5])
def test_a_decay_that_means_nothing_is_refused(ema):
    with pytest.raises(ValueError, match=r"between 0 and 1, got ema=.*; write for example ema="):
        Trainer(optax.sgd(0.1), _loss, ema=ema)


def test_a_model_of_averages_needs_averages():
    trainer = Trainer(optax.sgd(0.1), _loss)
    state = trainer.init(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match=r"needs a trainer that keeps them.*write Trainer\("):
        trainer.model(state, ema=True)


def test_a_step_branches_only_if_it_may_be_refused():
    def primitives(**options):
        trainer = Trainer(optax.sgd(0.1), _loss, **options)
        program = trainer.program(_Net(), _batches()[0])
        with jax.set_mesh(trainer.mesh):
            return str(jax.make_jaxpr(program.fn)(*program.args))

    assert " cond[" not in primitives(max_skips=0)
    assert " cond[" in primitives()
    assert " cond[" in primitives(guard=_SumOfLosses(), max_skips=0)


@pytest.mark.thorough
def test_a_guard_that_refuses_nothing_changes_no_bit(trainer):
    plain = Trainer(trainer._options.tx, _loss, ema=0.75, accumulate=2)
    with_guard, without = _run(trainer, _batches()), _run(plain, _batches())
    for name in ("params", "rest", "opt", "ema"):
        jax.tree.map(
            np.testing.assert_array_equal, getattr(with_guard, name), getattr(without, name)
        )


# A change after the update.


def _halve(model):
    """Halves a trained parameter, and counts its calls in the mean of the norm."""
    model.up.kernel.set_value(model.up.kernel[...] / 2)
    model.norm.mean.set_value(jnp.full(5, 7.0))


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"max_skips": 0}, {"accumulate": 2}])
def test_a_change_after_the_update_is_part_of_the_step(options):
    options |= {"ema": 0.75}
    plain = Trainer(optax.sgd(0.1), _loss, **options)
    want, _ = plain.step(plain.init(_Net()), _batches()[0])
    trainer = Trainer(optax.sgd(0.1), _loss, after_update=_halve, **options)
    start = trainer.init(_Net())
    first = np.asarray(start.params["up"]["kernel"], np.float64)
    got, _ = trainer.step(start, _batches()[0])
    half = np.asarray(want.params["up"]["kernel"]) / 2
    np.testing.assert_array_equal(got.params["up"]["kernel"], half)
    np.testing.assert_array_equal(got.params["down"]["kernel"], want.params["down"]["kernel"])
    np.testing.assert_array_equal(got.rest["norm"]["mean"], np.full(5, 7.0))
    average = 0.75 * first + 0.25 * half
    # Two products and a sum of float32 numbers below 2.
    np.testing.assert_allclose(got.ema["up"]["kernel"], average, atol=3 * 2**-23)


@pytest.mark.thorough
def test_a_rejected_step_calls_no_change():
    trainer = Trainer(optax.sgd(0.1), _loss, after_update=_halve)
    state = trainer.init(_Net())
    before = jax.tree.map(np.asarray, (state.params, state.rest))
    state, _ = trainer.step(state, _batches(bad=0)[0])
    assert int(state.skips.total) == 1
    jax.tree.map(np.testing.assert_array_equal, (state.params, state.rest), before)


def _of_frozen(model):
    model.down.kernel.set_value(model.down.kernel[...] * 2)


def _of_form(model):
    model.norm.mean.set_value(jnp.zeros(5, jnp.int32))


@pytest.mark.parametrize(
    "after_update, kind, message",
    [
        (_of_frozen, ValueError, r"must leave the parameters outside .*; write trainable="),
        (_of_form, ValueError, r"keep the shape and dtype.*got norm.mean=int32\[5\] for .*; write"),
        (lambda model: model, TypeError, r"in place and return None, got _Net; write variable"),
    ],
)
def test_a_change_that_cannot_be_kept_is_refused(after_update, kind, message):
    options = {"trainable": "up.*", "after_update": after_update}
    trainer = Trainer(optax.sgd(0.1), _loss, **options)
    with pytest.raises(kind, match=message):
        trainer.step(trainer.init(_Net()), _batches()[0])


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match=r"a function of the module, got after_update=0.1; write"):
        Trainer(optax.sgd(0.1), _loss, after_update=0.1)  # pyright: ignore[reportArgumentType] - the point of the test

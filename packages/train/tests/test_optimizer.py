# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Optimizers of Optax in the trainer, against loops without one."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import Precision, Trainer
from dovetail_train.mesh.mesh import ambient

SGD = optax.sgd(0.1)
SAM = (SGD, optax.chain(optax.contrib.normalize(), optax.sgd(0.05)))


class _Net(nnx.Module):
    def __init__(self):
        self.down = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
        self.scale = nnx.Param(jnp.float32([0.5, 1.0, 1.5]))

    def __call__(self, x):
        return jnp.tanh(self.down(x * self.scale))


def _loss(model, batch, *, key):
    error = ((model(batch["x"]) - batch["y"]) ** 2).sum(-1)
    return (batch["mask"] * error).sum(), batch["mask"].sum()


def _batch():
    """Rows of which the microbatches keep unequal numbers."""
    rng = np.random.default_rng(0)
    batch = {k: rng.normal(size=(8, n)).astype("f4") for k, n in (("x", 3), ("y", 2))}
    return batch | {"mask": np.array([1, 0, 1, 1, 1, 0, 0, 1], "f4")}


def _by_hand(tx, extra, *, steps):
    """Losses and parameters of a loop of Optax, full batches at once."""
    batch, graphdef_params = _batch(), nnx.split(_Net())
    graphdef, params = graphdef_params[0], nnx.to_pure_dict(graphdef_params[1])

    def value_fn(params):
        total, count = _loss(nnx.merge(graphdef, params), batch, key=None)
        return total / count

    @jax.jit
    def step(params, opt):
        value, grad = jax.value_and_grad(value_fn)(params)
        functions = {
            "value": value,
            "grad": grad,
            "value_fn": value_fn,
            "grad_fn": lambda p, i: jax.grad(value_fn)(p),
            "obj_fn": value_fn,
        }
        updates, opt = tx.update(grad, opt, params, **{name: functions[name] for name in extra})
        return optax.apply_updates(params, updates), opt, value

    opt, losses = tx.init(params), []
    for _ in range(steps):
        params, opt, value = step(params, opt)
        losses.append(float(value))
    return losses, params


SEARCH = ("value", "grad", "value_fn")
SEARCHING = {
    "lbfgs": (optax.lbfgs(memory_size=2), SEARCH),
    "backtracking": (
        optax.chain(SGD, optax.scale_by_backtracking_linesearch(9, store_grad=True)),
        SEARCH,
    ),
    "sophia": (optax.contrib.sophia(1e-2, update_interval=2), ("obj_fn",)),
    "sam, transparent": (optax.contrib.sam(*SAM), ()),
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name, accumulate",
    [("lbfgs", 1), ("lbfgs", 4), ("backtracking", 4), ("sophia", 4), ("sam, transparent", 1)],
)
def test_an_optimizer_that_evaluates_the_loss_is_that_of_a_loop_by_hand(name, accumulate):
    tx, extra = SEARCHING[name]
    want, params = _by_hand(tx, extra, steps=4)
    trainer = Trainer(tx, _loss, accumulate=accumulate)
    state, losses = trainer.init(_Net()), []
    for _ in range(4):
        state, metrics = trainer.step(state, _batch())
        losses.append(float(metrics.read()["loss"]))
    assert losses[-1] < losses[0]
    # Sums in another order differ by some float32 epsilons (1e-7); a search over four steps
    # divides by differences of gradients and makes them some hundred times as large.
    np.testing.assert_allclose(losses, want, rtol=1e-4)
    jax.tree.map(
        lambda got, by_hand: np.testing.assert_allclose(got, by_hand, rtol=1e-3, atol=1e-4),
        state.params,
        params,
    )


@pytest.mark.thorough
def test_sam_is_two_gradients_and_one_update():
    graphdef, tree = nnx.split(_Net())
    before, batch = nnx.to_pure_dict(tree), _batch()

    def mean(params):
        total, count = _loss(nnx.merge(graphdef, params), batch, key=None)
        return total / count

    gradient = jax.jit(jax.grad(mean))
    first = gradient(before)
    norm = np.sqrt(sum((np.asarray(g, np.float64) ** 2).sum() for g in jax.tree.leaves(first)))
    climbed = jax.tree.map(lambda p, g: p + 0.05 * g / np.float32(norm), before, first)
    want = jax.tree.map(lambda p, g: p - 0.1 * g, before, gradient(climbed))
    trainer = Trainer(optax.contrib.sam(*SAM, opaque_mode=True), _loss, accumulate=2)
    state, _ = trainer.step(trainer.init(_Net()), batch)
    # A few additions of float32 numbers of order 1.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), state.params, want
    )


class _Normed(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(params=0, dropout=1)
        self.norm, self.drop = nnx.BatchNorm(3, rngs=rngs), nnx.Dropout(0.25, rngs=rngs)
        self.down = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        return self.down(self.drop(self.norm(x)))


def _numbers(tree):
    """Random keys as their data."""

    def leaf(x):
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(x) if is_key else x)

    return jax.tree.map(leaf, tree)


@pytest.mark.thorough
def test_a_search_moves_no_state_of_the_module_and_sees_the_same_noise():
    searched = Trainer(optax.lbfgs(memory_size=2), _loss, accumulate=2)
    plain = Trainer(optax.sgd(0.0), _loss, accumulate=2)
    after, metrics = searched.step(searched.init(_Normed()), _batch())
    moved, _ = plain.step(plain.init(_Normed()), _batch())
    assert int(after.rest["drop"]["rngs"]["count"]) == 2  # one for each microbatch
    jax.tree.map(np.testing.assert_array_equal, *map(_numbers, (after.rest, moved.rest)))
    # The search ends at a loss of this batch with these statistics and this dropout.
    again = searched.init(_Normed())
    again = type(again)(**{**vars(again), "params": after.params})
    _, found = searched.step(again, _batch())
    state = next(s for s in after.opt if isinstance(s, optax.ScaleByZoomLinesearchState))
    assert float(state.value) == pytest.approx(found.read()["loss"], rel=1e-5)
    assert float(state.value) < metrics.read()["loss"]


@pytest.mark.thorough
def test_a_search_under_guard_average_precision_and_frozen_parameters():
    trainer = Trainer(
        optax.lbfgs(memory_size=2),
        _loss,
        precision=Precision(compute="bfloat16"),
        ema=0.5,
        trainable="down.*",
        accumulate=2,
    )
    state = trainer.init(_Net())
    state, first = trainer.step(state, _batch())
    before = jax.tree.map(np.asarray, (state.params, state.opt, state.ema))
    bad = _batch()
    bad["x"][0, 0] = np.inf
    state, skipped = trainer.step(state, bad)
    assert skipped.read()["skipped"] == 1.0
    jax.tree.map(np.testing.assert_array_equal, before, (state.params, state.opt, state.ema))
    state, last = trainer.step(state, _batch())
    assert last.read()["loss"] < first.read()["loss"]
    np.testing.assert_array_equal(state.frozen["scale"], _Net().scale[...])
    assert trainer._step.compiled._cache_size() == 1


@pytest.mark.thorough
def test_a_search_on_eight_devices_is_that_of_one(on_eight_devices):
    runs = on_eight_devices("searches.py")
    # Sums over 8 devices are in another order; four searches enlarge that.
    np.testing.assert_allclose(runs["both"]["losses"], runs["one"]["losses"], rtol=1e-4)
    assert runs["one"]["losses"][-1] < 0.9 * runs["one"]["losses"][0]
    assert (runs["one"]["shard"], runs["both"]["shard"]) == ([3, 8, 3], [3, 2, 3])


def _jaxpr(tx):
    trainer = Trainer(tx, _loss, accumulate=2)
    program = trainer.program(_Net(), _batch())
    with ambient(trainer.mesh):
        return str(jax.make_jaxpr(program.fn)(*program.args))


@pytest.mark.thorough
def test_nothing_is_traced_for_an_optimizer_that_ignores_the_functions():
    adam = optax.adam(1e-2)
    ignoring = optax.GradientTransformationExtraArgs(
        adam.init, lambda updates, state, params=None, **extra: adam.update(updates, state, params)
    )
    assert _jaxpr(ignoring) == _jaxpr(adam)
    assert len(_jaxpr(optax.lbfgs())) > 2 * len(_jaxpr(adam))


def test_sam_in_a_chain_is_refused_with_what_to_write(unchecked):
    chained = optax.chain(optax.clip(1.0), optax.contrib.sam(*SAM))
    with pytest.raises(
        TypeError,
        match=r"value_fn and grad_fn, got TypeError: .*'value'; .* write sam\(optax.chain",
    ):
        Trainer(chained, _loss).init(_Net())


@pytest.mark.thorough
def test_an_update_receives_the_arguments_that_it_names_and_no_other():
    seen = []

    def update(updates, state, params, *, value, grad_fn=None):
        seen.append((jnp.shape(value), jax.tree.structure(grad_fn(params, 0))))
        return jax.tree.map(jnp.negative, updates), state

    tx = optax.GradientTransformationExtraArgs(lambda params: (), update)
    trainer = Trainer(tx, _loss)
    state, _ = trainer.step(trainer.init(_Net()), _batch())
    assert set(seen) == {((), jax.tree.structure(state.params))}


# Every transformation of Optax, made from the first arguments that it takes.
_MASK = lambda params: jax.tree.map(lambda p: p.ndim > 1, params)  # noqa: E731
_LABELS = lambda params: jax.tree.map(lambda p: "a" if p.ndim > 1 else "b", params)  # noqa: E731
_ARGUMENTS = (
    (),
    (0.1,),
    (SGD,),
    (0.1, 0.5),
    ({"a": SGD, "b": optax.set_to_zero()}, _LABELS),
)
_OWN = {
    "MultiSteps": lambda: optax.MultiSteps(optax.lbfgs(memory_size=2), 2),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.lbfgs(memory_size=2), 2),
    "lookahead": lambda: optax.lookahead(SGD, 2, 0.5),
    "masked": lambda: optax.masked(SGD, _MASK),
    "schedule_free": lambda: optax.contrib.schedule_free(SGD, 0.1),
    "add_noise": lambda: optax.add_noise(0.1, 0.5, jax.random.key(0)),
    "conditionally_mask": lambda: optax.conditionally_mask(SGD, lambda step, **_: step < 2),
    "conditionally_transform": lambda: optax.conditionally_transform(
        SGD, lambda step, **_: step < 2
    ),
    "dpsgd": lambda: optax.contrib.dpsgd(0.1, 1.0, 0.5, 0),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
    "measure_with_ema": lambda: optax.measure_with_ema(optax.global_norm, 0.9),
    "monitor": lambda: optax.monitor({"norm": optax.global_norm}),
    "sam": lambda: optax.contrib.sam(*SAM, opaque_mode=True),
    "scale_by_schedule": lambda: optax.scale_by_schedule(optax.constant_schedule(0.1)),
    "selective_transform": lambda: optax.selective_transform(SGD, freeze_mask=_MASK),
    "snapshot": lambda: optax.snapshot("norm", optax.global_norm),
    "split_real_and_imaginary": lambda: optax.contrib.split_real_and_imaginary(SGD),
    "stateless": lambda: optax.stateless(lambda updates, params: updates),
    "stateless_with_tree_map": lambda: optax.stateless_with_tree_map(lambda u, p: -0.1 * u),
}
_REFUSED = {
    "differentially_private_aggregate": r"needs the gradient of each row, .* got tx with "
    r"DifferentiallyPrivateAggregateState; write a loop with jax.vmap",
    "dpsgd": r"needs the gradient of each row, .* got tx with .*; write a loop with jax.vmap",
    "lookahead": r"needs the slow parameters .* got tx with LookaheadState; pass its fast optim",
    # It replaces the updates by its measure.
    "measure_with_ema": r"an update of the shape of each parameter, got .*; mend the transform",
    # Its state has the measures from the first update on only.
    "monitor": r"must return a state of the tree that tx.init made, got .*; mend the transform",
    # It is for matrices alone; optax.contrib.muon partitions the parameters.
    "scale_by_muon": r"must update the parameters.* got ValueError: .*; pass another optimizer",
}
_GROUPS = 6  # of names, each tried by a test of its own
_NONE = {"GradientTransformation", "GradientTransformationExtraArgs"}


def _made(name):
    """A transformation; None if the name is of something else."""
    if name in _OWN:
        return _OWN[name]()
    make = getattr(optax, name, None) or getattr(optax.contrib, name)
    for arguments in _ARGUMENTS:
        try:
            made = make(*arguments)
        except Exception:
            continue
        if isinstance(made, optax.GradientTransformation | optax.MultiSteps):
            return made
    return None


_NAMES = sorted(
    name
    for module in (optax, optax.contrib)
    for name in dir(module)
    if not name.startswith("_") and callable(getattr(module, name)) and name not in _NONE
)


@pytest.mark.capability("every optimizer of Optax")
@pytest.mark.filterwarnings("ignore")  # deprecations of Optax's own
@pytest.mark.parametrize("first", range(_GROUPS))
def test_every_transformation_of_optax_trains_or_is_refused(first, unchecked):
    made = {name: tx for name in _NAMES[first::_GROUPS] if (tx := _made(name)) is not None}
    assert len(made) > 80 / _GROUPS
    for name, tx in made.items():
        trainer = Trainer(tx, _loss)
        if name in _REFUSED:
            with pytest.raises((TypeError, ValueError), match=_REFUSED[name]):
                trainer.init(_Net())
            continue
        program = trainer.program(_Net(), _batch())
        with ambient(trainer.mesh):
            state, _ = jax.eval_shape(program.fn, *program.args)
        assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, program.args[0]), name

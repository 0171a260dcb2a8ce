# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments. The type checks of the suite answer first; some cases run in a subprocess."""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

from dovetail_train import Precision, Trainer
from dovetail_train.step.checks import check_model, check_placement, check_run


class Batches(list):
    """An iterator's state is here; `check_run` reads nothing of it."""

    def get_state(self):
        return {}

    def set_state(self, state):
        del state


class NoHook:
    def __call__(self, trainer, state, step):
        return {}


GOOD = {"steps": 1, "save_every": None, "store": None, "sinks": (), "hooks": (), "resume": "exact"}


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"steps": 0}, ValueError, "steps must be at least 1 update, got steps=0; write steps="),
        (
            {"save_every": 0},
            ValueError,
            "save_every must .* got save_every=0; write save_every=",
        ),
        ({"save_every": 5}, ValueError, "needs a store, got save_every=5, store=None; pass store="),
        ({"resume": "force"}, ValueError, r'be "exact" or "convert", got resume=.force.; leave it'),
        ({"store": "runs"}, TypeError, r"got store='runs'; pass store=OrbaxStore\('runs'\)"),
        ({"sinks": ["a.jsonl"]}, TypeError, r"write\(step, scalars\), got 'a.jsonl'; pass for"),
        ({"sinks": print}, TypeError, r"sinks must be a list, got sinks=.*; write sinks=\[Console"),
        (
            {"hooks": [print]},
            TypeError,
            "a hook must have `every`, .* got .*print.*; set hook",
        ),
        ({"hooks": [NoHook()]}, TypeError, "a hook must have `every`, .* got .*NoHook.*; set hook"),
    ],
)
def test_an_argument_of_fit_is_refused_with_what_to_write(wrong, error, message):
    check_run(Batches(), **GOOD)
    with pytest.raises(error, match=message):
        check_run(Batches(), **GOOD | wrong)


def test_data_without_a_state_are_refused_with_a_store():
    with pytest.raises(ValueError, match=r"get_state and set_state .* list_iterator; pass such"):
        check_run(iter([]), **GOOD | {"store": object()})


def test_a_function_with_every_is_a_hook():
    def hook(trainer, state, step):
        return {}

    hook.every = 2
    check_run(Batches(), **GOOD | {"hooks": [hook]})


@pytest.mark.parametrize(
    ("mesh", "precision", "message"),
    [
        ("cpu", Precision(compute="float32"), "got mesh='cpu'; pass mesh=make_mesh()"),
        (None, "bfloat16", r"a Precision, got precision='bfloat16'; write precision=Precision\("),
    ],
)
def test_a_mesh_and_a_precision_are_refused_by_type(mesh, precision, message):
    with pytest.raises(TypeError, match=message):
        check_placement(mesh, precision)


def test_a_function_is_no_model():
    with pytest.raises(TypeError, match=r"must be a flax.nnx.Module, got <function .*; wrap"):
        check_model(lambda x: x)


# Modules of other libraries: the message is executed as it is written.

X = np.random.default_rng(0).normal(size=(8, 3)).astype("f4")
BATCH = {"x": X, "y": np.sin(X).sum(1, keepdims=True)}
STEPS = 3


def _loss(model, batch, *, key):
    error = (model(batch["x"]) - batch["y"]) ** 2
    return error.sum(), error.size * 1.0


def _refusal(model):
    with pytest.raises(TypeError, match=r"^model must be a flax.nnx.Module, got .*; write ") as e:
        check_model(model)
    return str(e.value)


def _trained(module):
    """The values of the parameters after some steps, largest first."""
    result = Trainer(optax.adam(0.1), _loss).fit(module, [BATCH] * STEPS, steps=STEPS)
    return sorted(jax.tree.leaves(result.state.params), key=np.size)


def _by_hand(params, call):
    """The same without a module, in a loop of Optax."""
    tx = optax.adam(0.1)
    opt = tx.init(params)
    for _ in range(STEPS):
        mean = jax.grad(lambda p: ((call(p, X) - BATCH["y"]) ** 2).mean())
        updates, opt = tx.update(mean(params), opt)
        params = optax.apply_updates(params, updates)
    return sorted(jax.tree.leaves(params), key=np.size)


def _equal(found, wanted):
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)  # sums in another order


def test_a_linen_module_is_trained_by_the_line_of_its_refusal():
    model = linen.Dense(1)
    message = _refusal(model)
    (line,) = re.findall(r"got the Linen module Dense; write (.*) with an input x of", message)
    bridged = eval(line, {"nnx": nnx, "model": model, "x": X})
    variables = {"params": nnx.to_pure_dict(nnx.state(bridged, nnx.Param))}
    assert sorted(variables["params"]) == ["bias", "kernel"]
    _equal(_trained(bridged), _by_hand(variables, model.apply))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    """A module as Equinox's are: a callable tree of arrays, and of other leaves."""

    weight: Any
    bias: Any
    mask: Any
    activation: Any

    def __call__(self, x):
        return self.activation((x * self.mask) @ self.weight.T + self.bias)


def test_a_callable_tree_of_arrays_is_trained_by_the_lines_of_its_refusal():
    mask = jnp.array([1, 0, 1])
    model = Layer(0.3 * jnp.ones((1, 3)), jnp.zeros(1), mask, jnp.tanh)
    message = _refusal(model)
    assert (
        "got Layer, a tree of arrays as those of Equinox are; write Wrapped(model) with" in message
    )
    lines = message[message.index("class Wrapped") :]
    assert len([line for line in lines.splitlines() if line]) == 10
    names = {"jax": jax, "jnp": jnp, "nnx": nnx}
    exec(lines, names)
    module = names["Wrapped"](model)

    def call(params, x):
        weight, bias = params
        return jnp.tanh((x * mask) @ weight.T + bias)

    _equal(_trained(module), _by_hand((model.weight, model.bias), call))
    assert nnx.split(module)[0] == nnx.split(names["Wrapped"](model))[0]  # one compiled step


@pytest.mark.thorough
def test_the_trainer_answers_so(unchecked):
    with pytest.raises(TypeError, match=r"got the Linen module Dense; write nnx\.bridge\.ToNNX"):
        Trainer(optax.adam(0.1), _loss).fit(linen.Dense(1), [BATCH], steps=1)

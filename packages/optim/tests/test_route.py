# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import inspect

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_optim import route
from dovetail_optim.route import pick


@pytest.fixture
def params():
    rng = np.random.default_rng(0)
    return {
        "embed": {"table": rng.normal(size=(5, 3)).astype(np.float32)},
        "layers": [
            {"kernel": rng.normal(size=(3, 3)).astype(np.float32), "bias": np.ones(3, np.float32)}
        ],
    }


def test_each_parameter_moves_by_the_first_rule_it_matches(params):
    tx = route([("**.bias", optax.sgd(1.0)), ("layers.**", optax.sgd(0.1)), ("**", optax.adam(1))])
    grads = jax.tree.map(lambda p: 2 * np.ones_like(p), params)
    updates, state = tx.update(grads, tx.init(params), params)
    np.testing.assert_array_equal(updates["layers"][0]["bias"], -2.0)
    np.testing.assert_allclose(updates["layers"][0]["kernel"], -0.2, rtol=1e-6)
    np.testing.assert_allclose(updates["embed"]["table"], -1.0, rtol=1e-5)  # Adam's first step
    assert len([x for x in jax.tree.leaves(state) if x.shape == (5, 3)]) == 2  # Adam's moments


def test_a_parameter_of_no_rule_is_named_with_the_patterns(params):
    with pytest.raises(ValueError, match=r"got 'embed.table'.*\['layers.\*\*'\].*end with"):
        route([("layers.**", optax.sgd(1.0))]).init(params)


def test_a_rule_that_moves_nothing_is_named_with_the_nearest_paths(params):
    rules = [("layer.*.kernel", optax.sgd(1.0)), ("**", optax.sgd(0.1))]
    with pytest.raises(ValueError, match=r"'layer.\*.kernel', which .*nearest: 'layers.0.kernel'"):
        route(rules).init(params)


def test_a_rule_behind_one_that_takes_all_it_matches_is_an_error(params):
    rules = [("**", optax.sgd(1.0)), ("**.bias", optax.sgd(0.1))]
    with pytest.raises(ValueError, match=r"all that '\*\*.bias' matches.*\['\*\*', .*put"):
        route(rules).init(params)


@pytest.mark.parametrize("tx", [0.1, optax.sgd, "adam"])
def test_a_rule_without_a_transformation_is_refused_at_the_call(tx, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match=r"have init and update, .* got .*; write optax.adamw"):
        route([("**", tx)])


@pytest.mark.parametrize("rule", ["**", ("**",), (optax.sgd(1.0), "**")])
def test_a_rule_is_a_pattern_and_a_transformation(rule, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match="a rule is a pattern and a transformation"):
        route([rule])


def test_nnx_state_and_its_pure_dict_move_alike():
    model = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    rules = [("kernel", optax.adam(0.1)), ("bias", optax.sgd(0.1))]
    pure = nnx.as_pure(nnx.state(model, nnx.Param))
    tx = route(rules)
    updates, _ = tx.update(pure, tx.init(pure), pure)
    expected = optax.apply_updates(pure, updates)
    opt = nnx.Optimizer(model, tx, wrt=nnx.Param)
    opt.update(model, nnx.state(model, nnx.Param))  # any gradient: its own parameters
    for name in ("kernel", "bias"):
        np.testing.assert_array_equal(getattr(model, name)[...], expected[name])


def test_extra_arguments_reach_those_that_take_them():
    seen = []

    def update(updates, state, params=None, *, value, **_):
        seen.append(float(value))
        return updates, state

    takes = optax.GradientTransformationExtraArgs(optax.init_empty_state, update)
    tx = route([("a", takes), ("b", optax.sgd(1.0))])
    tree = {"a": jnp.ones(2), "b": jnp.ones(2)}
    tx.update(tree, tx.init(tree), tree, value=3.0)
    assert seen == [3.0]


def test_leaves_are_picked_by_name_from_a_larger_tree():
    given = {"a": {"kernel": 1, "bias": 2}, "b": 3}
    assert pick(given, {"b": "x", "a": {"kernel": "y"}}, what="shardings") == [1, 3]
    message = r"shardings must name every .*; got none for 'c'; .*; write shardings=jax.tree.map"
    with pytest.raises(ValueError, match=message):
        pick(given, {"c": 0}, what="shardings")


def test_the_labels_have_a_title_for_each_rule():
    """The names of learning rates in the metrics of dovetail-train."""
    tx = route([("a.**", optax.sgd(1.0), "first"), ("**", optax.sgd(1.0))])
    labels = inspect.getclosurevars(tx.update).nonlocals["param_labels"]
    assert labels.titles == {"0": "first", "1": "**"}

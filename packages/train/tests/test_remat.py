# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from dovetail_train import Trainer, fit_remat

ROWS, WIDTH, DEPTH = 512, 32, 12


class _Deep(nnx.Module):
    """Layers of three hidden activations each; remat=True keeps none, "first" one of them."""

    def __init__(self):
        kernels = jax.random.normal(jax.random.key(0), (DEPTH, 3, WIDTH, WIDTH)) / WIDTH**0.5
        self.kernels = nnx.Param(kernels)
        self.remat = False

    def configure(self, *, remat):
        other = nnx.clone(self)
        other.remat = remat
        return other

    def __call__(self, x):
        def layer(x, kernels):
            for i, kernel in enumerate(kernels):
                x = jnp.tanh(checkpoint_name(x @ kernel, f"h{i}"))
            return x, None

        if self.remat:
            names = ("h0",) if self.remat == "first" else ()
            policy = jax.checkpoint_policies.save_only_these_names(*names)
            layer = jax.checkpoint(layer, policy=policy, prevent_cse=False)
        return jax.lax.scan(layer, x, self.kernels[...])[0]


def _loss(model, batch, *, key):
    return (model(batch["x"]) ** 2).sum(), jnp.float32(ROWS)


BATCH = {"x": np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype("f4")}
CANDIDATES = [True, False, "first"]


@pytest.fixture(scope="module")
def trainer():
    return Trainer(optax.sgd(0.1), _loss)


def _needs(trainer, remat):
    """XLA's own figures for the step compiled as `fit` does."""
    trainer.init(model := _Deep().configure(remat=remat))
    program = trainer.program(model, BATCH)
    step = jax.jit(program.fn, donate_argnums=0, out_shardings=program.out_shardings)
    with jax.set_mesh(trainer.mesh):
        found = step.lower(*program.args).compile().memory_analysis()
    kept = found.output_size_in_bytes - found.alias_size_in_bytes
    return found.argument_size_in_bytes + found.temp_size_in_bytes + kept


@pytest.mark.thorough
def test_the_cheapest_that_fits_is_chosen(trainer):
    needs = {remat: _needs(trainer, remat) for remat in CANDIDATES}
    assert needs[True] < needs["first"] < needs[False]
    for chosen in CANDIDATES:
        fitted = fit_remat(trainer, _Deep(), BATCH, candidates=CANDIDATES, max_bytes=needs[chosen])
        assert fitted.remat == fitted.model.remat == chosen
        order = [one.candidate for one in fitted.tried]
        assert order == [False, "first", True]
        compiled = {one.candidate: one.peak_bytes for one in fitted.tried}
        tried = order[: order.index(chosen) + 1]
        assert compiled == {c: needs[c] if c in tried else None for c in CANDIDATES}
        assert str(fitted).count("*") == 1


@pytest.mark.thorough
def test_recomputation_is_counted_and_gradients_stay(trainer):
    fitted = fit_remat(trainer, _Deep(), BATCH, candidates=[False, True], max_bytes=2**40)
    product = 2 * ROWS * WIDTH * WIDTH
    # The last activation of a layer is the next one's input, which is kept.
    assert [one.recomputed for one in fitted.tried] in (
        [0, DEPTH * 3 * product],
        [0, DEPTH * 2 * product],
    )
    states = []
    for remat in (False, True):
        model = _Deep().configure(remat=remat)
        state, _ = trainer.step(trainer.init(model), BATCH)
        states.append(np.asarray(state.params["kernels"]))
    np.testing.assert_allclose(*states, rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_a_budget_that_nothing_fits_says_what_each_needs(trainer):
    with pytest.raises(
        ValueError, match=r"must fit max_bytes=1,000 on a device, got False: .*True"
    ):
        fit_remat(trainer, _Deep(), BATCH, candidates=[True, False], max_bytes=1000)


@pytest.mark.parametrize(
    "options", [{"candidates": [], "max_bytes": 9}, {"candidates": [False], "max_bytes": 0}]
)
def test_options_that_mean_nothing_are_refused(trainer, options):
    with pytest.raises(ValueError, match=r"not be empty and max_bytes at least 1, got .*; write"):
        fit_remat(trainer, _Deep(), BATCH, **options)

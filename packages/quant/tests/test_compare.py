# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What a compared model measures against the same done with float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dovetail_quant import Spec, apply, plan
from dovetail_quant.calibrating.recorder import counting
from dovetail_quant.reports.compare import Slope, Sums, by_site, compared, quantized_kernels
from dovetail_quant.sites.modules import module_at
from dovetail_quant.sites.sites import sites

SPEC = Spec(weight="int4", group=4)
SIZES = [4, 0, 4]  # and two rows of no expert


class Experts(nnx.Module):
    def __init__(self, rngs):
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), (3, 8, 8)))
        self.ragged_dot = jax.lax.ragged_dot

    def __call__(self, x):
        rows = x.reshape(-1, 8)
        sizes = jnp.array(SIZES, jnp.int32)
        return self.ragged_dot(rows, self.kernel[...], sizes).reshape(x.shape)


class Model(nnx.Module):
    """Every kind of site; the outputs of the einsum lie around its rows."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(11, 8, rngs=rngs)
        self.linear = nnx.Linear(8, 12, rngs=rngs)
        self.einsum = nnx.Einsum("btd,nhd->nbth", (2, 3, 12), rngs=rngs)
        self.general = nnx.LinearGeneral((2, 3), (4, 2), axis=(0, -1), rngs=rngs)
        self.experts = Experts(rngs)

    def __call__(self, tokens):
        heads = self.einsum(jnp.tanh(self.linear(self.embed(tokens))))
        y = self.general(heads).reshape(*tokens.shape, 8)
        return self.embed.attend(self.experts(y))


TOKENS = jnp.arange(10).reshape(2, 5)


def weights(model):
    """The float64 weights of a model, quantized or not, by path."""
    found = {}
    for path, site in sites(model).items():
        value = getattr(module_at(model, path), site.parameter).get_value()
        found[path] = np.asarray(value.dequantize() if site.left_alone else value, np.float64)
    return found


def outputs(w, other, g=None):
    """(y, z) [rows, outputs] of each product by path, z by the weights of `other`."""
    table, tokens = w["embed"], np.asarray(TOKENS).reshape(-1)
    looked = table[tokens]
    hidden = np.tanh(looked @ w["linear"])
    heads = np.einsum("rd,nhd->rnh", hidden, w["einsum"])
    general = np.einsum("rnh,nhop->rop", heads, w["general"]).reshape(-1, 8)
    which = [0, 0, 0, 0, 2, 2, 2, 2]
    experts = np.stack([general[r] @ w["experts"][e] for r, e in enumerate(which)])
    experts = np.concatenate([experts, np.zeros((2, 8))])
    theirs = np.stack([general[r] @ other["experts"][e] for r, e in enumerate(which)])
    return {
        "embed": [
            (looked, other["embed"][tokens]),
            (experts @ table.T, experts @ other["embed"].T),
        ],
        "linear": [(looked @ w["linear"], looked @ other["linear"])],
        "einsum": [
            (
                heads.reshape(10, -1),
                np.einsum("rd,nhd->rnh", hidden, other["einsum"]).reshape(10, -1),
            )
        ],
        "general": [(general, np.einsum("rnh,nhop->rop", heads, other["general"]).reshape(-1, 8))],
        "experts": [(experts, np.concatenate([theirs, np.zeros((2, 8))]))],
    }


@pytest.fixture(scope="module")
def pair():
    model = Model()
    return model, apply(
        model, plan(model, [("embed", Spec()), ("**", Spec(weight="int4", group=2))])
    )


@pytest.mark.thorough
def test_sums_are_of_each_product_on_float_inputs(pair):
    model, quantized = pair
    listening = compared(model, quantized)
    np.testing.assert_allclose(listening(TOKENS), model(TOKENS), rtol=1e-6, atol=1e-6)
    found = by_site(nnx.state(listening, Sums))
    exact = outputs(weights(model), weights(quantized))
    assert found.keys() == exact.keys()
    for path, products in exact.items():
        squares = [[((z - y) ** 2).sum(), (y**2).sum()] for y, z in products]
        # float32 sums of up to 400 squares of products of 12.
        np.testing.assert_allclose(found[path], np.sum(squares, axis=0), rtol=1e-4, err_msg=path)


@pytest.mark.thorough
def test_rows_that_do_not_count_are_left_out(pair):
    model, quantized = pair
    mask = jnp.array([[1, 1, 0, 1, 0], [0, 1, 1, 1, 1]], jnp.float32)
    listening = compared(model, quantized)
    with counting(mask):
        listening(TOKENS)
    found = by_site(nnx.state(listening, Sums))
    y, z = outputs(weights(model), weights(quantized))["linear"][0]
    keep = np.asarray(mask).reshape(-1) > 0
    wanted = [((z - y)[keep] ** 2).sum(), (y[keep] ** 2).sum()]
    np.testing.assert_allclose(found["linear"], wanted, rtol=1e-4)


@pytest.mark.thorough
def test_slopes_are_squares_of_what_the_loss_gains_row_by_row(pair):
    model, quantized = pair
    target = jax.random.normal(jax.random.key(1), (2, 5, 11))
    graphdef, slopes, rest = nnx.split(compared(model, quantized), Slope, ...)

    def loss(slopes):
        merged = nnx.merge(graphdef, slopes, jax.tree.map(lambda x: x, rest))
        return jnp.sum(jnp.sin(merged(TOKENS)) * target)

    found = by_site(jax.grad(loss)(slopes))
    w, other = weights(model), weights(quantized)
    for path, products in outputs(w, other).items():
        if path in ("embed", "experts"):
            continue  # its two products, and rows of its experts, are the same by construction
        y, z = products[0]
        wanted = 0.0
        for row in range(10):
            wanted += _gain(w, path, row, z[row] - y[row], np.asarray(target, np.float64)) ** 2
        np.testing.assert_allclose(found[path], wanted, rtol=2e-3, err_msg=path)


def _gain(w, path, row, delta, target):
    """d loss / d e of row `row` of the site's outputs moved by e delta, by central differences."""

    def loss(e):
        table, tokens = w["embed"], np.asarray(TOKENS).reshape(-1)
        move = np.zeros((10, delta.size))
        move[row] = e * delta
        x = table[tokens] @ w["linear"] + (move if path == "linear" else 0)
        heads = np.einsum("rd,nhd->rnh", np.tanh(x), w["einsum"])
        heads = heads + (move.reshape(heads.shape) if path == "einsum" else 0)
        y = np.einsum("rnh,nhop->rop", heads, w["general"]).reshape(-1, 8)
        y = y + (move if path == "general" else 0)
        rows = [y[r] @ w["experts"][0 if r < 4 else 2] for r in range(8)]
        logits = np.concatenate([np.stack(rows), np.zeros((2, 8))]) @ table.T
        return np.sum(np.sin(logits) * target.reshape(10, 11))

    return (loss(1e-4) - loss(-1e-4)) / 2e-4


@pytest.mark.thorough
def test_codes_of_another_model_are_refused(pair):
    _, quantized = pair
    other = Model()
    other.linear = nnx.Linear(8, 6, rngs=nnx.Rngs(0))
    with pytest.raises(
        ValueError, match=r"got a quantized 'linear' of shape \[8, 12\]; pass|no such"
    ):
        compared(other, quantized)
    with pytest.raises(ValueError, match=r"one before and after quantization"):
        compared(quantized, quantized)


@pytest.mark.thorough
def test_codes_are_found_by_path(pair):
    model, quantized = pair
    assert set(quantized_kernels(quantized)) == set(sites(model))
    assert quantized_kernels(model) == {}


class Table(nnx.Module):
    """An embedding that takes part by its attributes, and is its own head."""

    def __init__(self):
        self.embedding = nnx.Param(jax.random.normal(jax.random.key(3), (11, 8)))
        self.lookup = lambda table, index: table[index]
        self.dot_general = jax.lax.dot_general

    def __call__(self, tokens):
        x = self.lookup(self.embedding[...], tokens)
        return self.dot_general(x, self.embedding[...], (((2,), (1,)), ((), ())))


@pytest.mark.thorough
def test_both_products_of_a_tied_table_are_summed():
    model = nnx.Sequential(Table())
    quantized = apply(model, plan(model, [("layers.0", SPEC)]))
    listening = compared(model, quantized)
    listening(TOKENS)
    (found,) = by_site(nnx.state(listening, Sums)).values()
    ours, theirs = (weights(m)["layers.0"] for m in (model, quantized))
    x = ours[np.asarray(TOKENS).reshape(-1)]
    dx = theirs[np.asarray(TOKENS).reshape(-1)] - x
    wanted = [(dx**2).sum() + ((x @ (theirs - ours).T) ** 2).sum()]
    wanted += [(x**2).sum() + ((x @ ours.T) ** 2).sum()]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)

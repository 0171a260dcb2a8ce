# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from dovetail_quant.kernel import Axes
from dovetail_quant.modules import module_at
from dovetail_quant.sites import sites


class Everything(nnx.Module):
    """A module of each kind that is a site, and of each that is left alone."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.linear = nnx.Linear(8, 6, rngs=rngs)
        self.general = nnx.LinearGeneral((2, 3), (4, 5), axis=(-2, -1), rngs=rngs)
        self.batched = nnx.LinearGeneral(3, 4, batch_axis={0: 2}, rngs=rngs)
        self.einsum = nnx.Einsum("btd,dnh->btnh", (8, 2, 4), rngs=rngs)
        self.summed = nnx.Einsum("btd,dnh->nh", (8, 2, 4), rngs=rngs)
        self.embed = nnx.Embed(11, 8, rngs=rngs)
        self.conv = nnx.Conv(3, 4, kernel_size=(2,), rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(4, 4, rngs=rngs)])


def test_kinds_axes_and_reasons():
    found = sites(Everything())
    assert {path: (site.kind, site.axes.sizes) for path, site in found.items()} == {
        "linear": ("linear", (1, 8, 6)),
        "general": ("general", (1, 6, 20)),
        "batched": (None, (1, 6, 4)),
        "einsum": ("einsum", (1, 8, 8)),
        "summed": (None, (1, 16, 4)),
        "embed": ("embed", (1, 8, 11)),
        "conv": (None, (1, 6, 4)),
        "blocks.0": ("linear", (1, 4, 4)),
    }
    reasons = {path: site.left_alone for path, site in found.items() if site.left_alone}
    assert reasons == {
        "batched": "has a matrix for every element of a batch axis",
        "summed": "its equation btd,dnh->nh is no product of matrices",
        "conv": "a Conv has its product in its own code",
    }


def test_an_abstract_model_has_the_same_sites():
    assert sites(nnx.eval_shape(Everything)) == sites(Everything())


def test_a_module_is_found_by_its_path():
    model = Everything()
    assert module_at(model, "blocks.0") is model.blocks[0]


@pytest.mark.parametrize(
    "axes",
    [
        Axes(shape=(2, 3, 4), inputs=(1, 0)),
        Axes(shape=(5, 2, 3), inputs=(2,), batch=(0,)),
        Axes(shape=(4, 3), inputs=(1,)),
    ],
)
def test_a_fold_is_undone(axes):
    w = jax.random.normal(jax.random.key(0), axes.shape)
    folded = axes.fold(w)
    assert folded.shape == (axes.sizes if axes.batch else axes.sizes[1:])
    assert jnp.array_equal(axes.unfold(folded), w)


def test_the_first_input_of_a_fold_is_the_first_contracted_axis():
    w = jnp.arange(24.0).reshape(2, 3, 4)
    folded = Axes(shape=(2, 3, 4), inputs=(0, 1)).fold(w)
    assert jnp.array_equal(folded[:3], w[0])

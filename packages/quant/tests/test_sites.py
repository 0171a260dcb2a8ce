# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from dovetail_quant.sites.kernel import Axes
from dovetail_quant.sites.modules import module_at
from dovetail_quant.sites.sites import selects, sites


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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_an_abstract_model_has_the_same_sites():
    assert sites(nnx.eval_shape(Everything)) == sites(Everything())


@pytest.mark.thorough
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


class Tower(nnx.Module):
    """As many rows as features, so that every linear has the shape of a head."""

    def __init__(self, *, head=True):
        rngs = nnx.Rngs(0)
        self.embed = nnx.Embed(8, 8, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(8, 8, rngs=rngs)])
        self.head = nnx.LinearGeneral(8, (2, 4), rngs=rngs) if head else None
        self.narrow = nnx.Linear(8, 4, rngs=rngs)


class Around(nnx.Module):
    def __init__(self):
        self.model = Tower(head=False)
        self.lm_head = nnx.Linear(8, 8, rngs=nnx.Rngs(0))


def roles(model):
    return {path: site.role for path, site in sites(model).items() if site.role}


@pytest.mark.thorough
def test_a_head_stands_beside_its_embedding_and_has_its_rows():
    assert roles(Tower()) == {"embed": "embedding", "head": "head"}
    assert roles(Around()) == {"model.embed": "embedding", "lm_head": "head"}
    rngs = nnx.Rngs(0)
    table, inner, head = (
        nnx.Embed(9, 4, rngs=rngs),
        *(nnx.Linear(4, n, rngs=rngs) for n in (4, 9)),
    )
    assert roles(nnx.Sequential(table, inner, head)) == {
        "layers.0": "embedding",
        "layers.2": "head",
    }
    assert roles(nnx.Sequential(inner, head)) == {}
    assert roles(nnx.Embed(3, 2, rngs=rngs)) == {"": "embedding"}


@pytest.mark.parametrize(
    "pattern, named",
    [
        ("**", False),
        ("*", False),
        ("{**,embed}", False),
        ("embed", True),
        ("{embed,head}", True),
        ("emb*", True),
        ("**.embed", True),
        ("embed.**", True),
        (("**", "embed"), True),
    ],
)
def test_a_name_selects_an_embedding_and_wildcards_do_not(pattern, named):
    by_path = sites(Tower())
    assert selects(pattern, by_path["embed"]) == named
    assert selects("**", by_path["narrow"])


def test_an_index_is_a_name():
    table = sites(nnx.Sequential(nnx.Embed(9, 4, rngs=nnx.Rngs(0)), nnx.relu))["layers.0"]
    assert [selects(p, table) for p in ("layers.0", "layers.{0,2}", "layers.#", "layers.*")] == [
        True,
        True,
        False,
        False,
    ]

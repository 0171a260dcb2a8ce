# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A model with a computation of its own is refused by name before a file is written."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from dovetail_models import Remat, Rope, bert, llama, lora, mixtral, replace, save
from dovetail_models.layers.block import SelfAttention
from dovetail_models.layers.router import Router

SIZES = {"vocab_size": 31, "embed": 12, "depth": 2, "heads": 2, "mlp": 10}
CONFIGS = {
    "llama": llama(**SIZES),
    "mixtral": mixtral(**SIZES, experts=3),
    "bert": bert(**SIZES),
}
WAY_OUT = "or save nnx.state(model) with dovetail_checkpoint.Store or Orbax"


class Cold(Router):
    """A router with a temperature of its own."""

    def __call__(self, x):
        return super().__call__(x * 0.5)


class Backwards(SelfAttention):
    """An attention of the user's own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slow(Rope):
    """A RoPE of the user's own."""


def retyped(kind):
    """A function that gives a module the class `kind`."""

    def change(_, module):
        module.__class__ = kind
        return module

    return change


def changed(**attributes):
    """A function that sets attributes of a module."""

    def change(_, module):
        for name, value in attributes.items():
            setattr(module, name, value)
        return module

    return change


def with_rope(rope):
    """A function that gives the attention of a model's first layer another RoPE."""

    def change(model):
        model = nnx.clone(model)
        first, *others = model.config.layers
        attention = dataclasses.replace(first.attention, rope=rope)
        first = dataclasses.replace(first, attention=attention)
        model.config = dataclasses.replace(model.config, layers=(first, *others))
        model.layers[0].attn.config = attention
        return model

    return change


def shared(model):
    model = nnx.clone(model)
    model.layers[1] = model.layers[0]
    return model


def biased(_, linear):
    linear.bias = nnx.Param(jnp.zeros(linear.out_features))
    return linear


CASES = {
    "router": ("mixtral", "layers.1.mlp.router", retyped(Cold), "a Cold in place of a Router"),
    "attention": (
        "llama",
        "layers.0.attn",
        retyped(Backwards),
        "a Backwards in place of a SelfAttention",
    ),
    "block": (
        "llama",
        "layers.1",
        lambda _, block: nnx.Sequential(block),
        "a Sequential in place of a Block",
    ),
    "norm": ("bert", "layers.0.attn_norm", lambda *_: nnx.Module(), "a Module in place of a Layer"),
    "mlp": ("llama", "layers.0.mlp", lambda *_: nnx.Dropout(0.1), "a Dropout in place of a FeedF"),
    "activation": (
        "llama",
        "layers.0.mlp",
        changed(activation="gelu"),
        ".activation='gelu' in place of 'silu'",
    ),
    "method": (
        "mixtral",
        "layers.0.mlp",
        changed(_mix=jax.nn.relu),
        "._mix, in place of a method of MixtureOfExperts",
    ),
    "added module": (
        "llama",
        "layers.0",
        changed(attn_post_norm=nnx.data(nnx.Dropout(0.5))),
        ".attn_post_norm, a Dropout, which the config lacks",
    ),
    "no module": ("bert", "layers.0", changed(mlp=nnx.data(None)), "no layers.0.mlp, which the "),
    "added parameter": ("llama", "layers.0.attn.q", biased, ".bias, which the config lacks"),
    "no parameter": ("bert", "layers.0.attn.q", changed(bias=nnx.data(None)), "no layers.0.attn.q"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_module_of_ones_own_is_named(case, random_model, tmp_path):
    family, path, change, words = CASES[case]
    model = replace(random_model(CONFIGS[family]), path, change)
    with pytest.raises(ValueError, match=f"files of a {family} can express") as error:
        save(model, tmp_path / "m")
    assert path in str(error.value)
    assert words in str(error.value)
    assert WAY_OUT in str(error.value)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    "change, words",
    [
        (
            with_rope(Slow(theta=1e4)),
            "got config.layers[0].attention.rope, a Slow",
        ),
        (with_rope(None), "must have Attention with RoPE and Experts, got layers[0] with"),
        (shared, "no layers.1.attn.k.kernel, or one shared with another module"),
    ],
    ids=["own rope", "no rope", "shared layers"],
)
def test_a_rope_of_ones_own_and_shared_layers_are_named(change, words, random_model, tmp_path):
    model = change(random_model(CONFIGS["mixtral"]))
    with pytest.raises(ValueError, match="dovetail_checkpoint") as error:
        save(model, tmp_path / "m")
    assert words in str(error.value)
    assert not (tmp_path / "m").exists()


def test_ways_to_execute_are_saved(random_model, tmp_path):
    """Scan, recomputation, products and precisions change no function."""
    model = random_model(CONFIGS["mixtral"]).configure(
        scan=True, remat=Remat(save=()), ragged_dot=lambda x, w, sizes: x @ w[0]
    )
    products = changed(precision="highest", dot_general=jax.lax.dot_general)
    save(replace(model, "**.{q,k}", products), tmp_path / "m")
    assert (tmp_path / "m" / "model.safetensors").exists()


def test_an_adapter_is_still_told_to_merge(random_model, tmp_path):
    model = random_model(CONFIGS["llama"])
    adapted = lora.insert(model, "layers.*.attn.q", rank=2, alpha=4, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"Merge adapters \(lora.merge\)"):
        save(adapted, tmp_path / "m")
    save(lora.merge(adapted), tmp_path / "m")

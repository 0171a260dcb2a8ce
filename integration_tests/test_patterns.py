# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One language for parameters: the same patterns choose the same things in every package."""

import importlib
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

import dovetail_checkpoint as checkpoint
import dovetail_models as models
import dovetail_optim as optim
import dovetail_quant as quant
import dovetail_train as train
from dovetail_checkpoint.layout.rules import only

PACKAGES = ("checkpoint", "models", "optim", "quant", "train")
MODULES = [importlib.import_module(f"dovetail_{name}._patterns") for name in PACKAGES]

DEPTH = 12
MATRICES = ("attn.k", "attn.o", "attn.q", "attn.v", "mlp.down", "mlp.gate", "mlp.up")
LAYERS = range(DEPTH)


def matrices(layers=LAYERS, names=MATRICES):
    return {f"layers.{i}.{name}" for i in layers for name in names}


SITES = {"embed", "lm_head", *matrices()}

# {pattern over the modules of a model with 12 layers: those that it stands for}
CASES = {
    "layers.1.attn.q": {"layers.1.attn.q"},
    "layers.11.attn.q": {"layers.11.attn.q"},
    "layers.1.*.*": matrices([1]),
    "layers.1.**": matrices([1]),
    "layers.1*.**": matrices([1, 10, 11]),
    "layers.10.**": matrices([10]),
    "layers.*1.**": matrices([1, 11]),
    "layers.?.**": ValueError,
    "layers.#.**": matrices(),
    "layers.#": None,
    "layers.1#.**": matrices([10, 11]),
    "layers.{0,11}.**": matrices([0, 11]),
    "layers.{0..11}.**": matrices(),
    "layers.{9..11}.**": matrices([9, 10, 11]),
    "layers.{0..11..5}.**": matrices([0, 5, 10]),
    "layers.{0,3..4}.**": matrices([0, 3, 4]),
    "layers.{1,1#}.**": matrices([1, 10, 11]),
    "layers.*.attn.q": matrices(names=["attn.q"]),
    "layers.*.attn.*": matrices(names=["attn.k", "attn.o", "attn.q", "attn.v"]),
    "layers.*.attn.{q,k}": matrices(names=["attn.q", "attn.k"]),
    "layers.*.{attn.q,mlp.up}": matrices(names=["attn.q", "mlp.up"]),
    "layers.*.{attn,mlp}.*": matrices(),
    "layers.*.m*.*": matrices(names=["mlp.down", "mlp.gate", "mlp.up"]),
    "layers.*.*lp.*": matrices(names=["mlp.down", "mlp.gate", "mlp.up"]),
    "layers.*.*l*.*": matrices(names=["mlp.down", "mlp.gate", "mlp.up"]),
    "layers.*.mlp.{gate,up}": matrices(names=["mlp.gate", "mlp.up"]),
    "**.q": matrices(names=["attn.q"]),
    "**.attn.**": matrices(names=["attn.k", "attn.o", "attn.q", "attn.v"]),
    "**.1.**": matrices([1]),
    "**.1.**.q": {"layers.1.attn.q"},
    "**.mlp.up": matrices(names=["mlp.up"]),
    "**.{q,up}": matrices(names=["attn.q", "mlp.up"]),
    "**.layers.3.**": matrices([3]),
    "layers.**.attn.**.q": matrices(names=["attn.q"]),
    "layers.**": matrices(),
    "layers.**.**": matrices(),
    "**": SITES,
    "**.**": SITES,
    "*": {"embed", "lm_head"},
    "*.*.*.*": matrices(),
    "embed": {"embed"},
    "**.embed": {"embed"},
    "embed.**": {"embed"},
    "*m*": {"embed", "lm_head"},
    "*_head": {"lm_head"},
    "{embed,lm_head}": {"embed", "lm_head"},
    "{embed,layers.0.**}": {"embed", *matrices([0])},
    "layers/1/**": matrices([1]),
    "layers/*/attn/q": matrices(names=["attn.q"]),
    "**/q": matrices(names=["attn.q"]),
    "layers": None,
    "layers.1": None,
    "layers.1.*": None,
    "layers.12.**": None,
    "layers.01.**": None,
    "layer.1.**": None,
    "attn.q": None,
    "Embed": None,
    "embe": None,
    "mbed": None,
    "": None,
    "*.q": None,
    "q": None,
    "*norm*": None,
    ".*": ValueError,
    r"layers\.1\..*": ValueError,
    "layers.1.(attn|mlp)": ValueError,
    "embed|lm_head": ValueError,
    "^embed": ValueError,
    "embed$": ValueError,
    "layers.[0-9].**": ValueError,
    "layers.1+": ValueError,
    "layers..q": ValueError,
    ".embed": ValueError,
    "embed.": ValueError,
    "layers.{1": ValueError,
    "layers.1}": ValueError,
    "{a,{b,c}}": ValueError,
    "{embed,}": ValueError,
    "**q": ValueError,
    "layers.a**": ValueError,
}
GOOD = {pattern: names for pattern, names in CASES.items() if isinstance(names, set)}
UNMATCHED = [pattern for pattern, names in CASES.items() if names is None]
BAD = [pattern for pattern, names in CASES.items() if names is ValueError]


@pytest.fixture(scope="module")
def model():
    config = models.llama(
        vocab_size=16, embed=8, depth=DEPTH, heads=2, kv_heads=1, mlp=8, tie=False
    )
    return models.init(config, seed=0)


@pytest.fixture(scope="module")
def params(model):
    """The matrices of the model by module, as a tree of dicts: names are those of modules."""
    tree = {}
    for path in quant.sites(model):
        *parents, last = path.split(".")
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
        node[last] = jnp.ones((2, 3))
    return tree


def by_quant_plan(pattern, model, params):
    chosen = quant.plan(model, [(pattern, quant.Spec())])
    # Embedding and head are matched too, but quantized by name alone.
    alone = {path for path, why in chosen.left_alone.items() if "named alone" in why}
    return alone | set(chosen.specs)


def by_quant_sites(pattern, model, params):
    return set(quant.sites(model, where=pattern))


def by_quant_skip(pattern, model, params):
    chosen = quant.plan_bits(model, bits=8, also=["embed", "lm_head"], skip=[pattern])
    return {path for path, why in chosen.left_alone.items() if why == "as its rule says"}


def by_models_select(pattern, model, params):
    return set(models.select(model, pattern)) & SITES


def by_optim_route(pattern, model, params):
    tx = optim.route([(pattern, optax.sgd(1.0)), ("**", optax.set_to_zero())])
    updates, _ = tx.update(params, tx.init(params), params)
    return moved(updates)


def by_optim_decay(pattern, model, params):
    tx = optim.decay(0.1, where=pattern)
    updates, _ = tx.update(jax.tree.map(jnp.zeros_like, params), tx.init(params), params)
    return moved(updates)


def by_checkpoint_only(pattern, model, params):
    leaves = dict.fromkeys(checkpoint.digest(params))
    return set(only(pattern).apply(leaves))


def by_train_watch(pattern, model, params):
    state = type("State", (), {"params": params})
    trainer = train.Trainer(optax.sgd(0.1), lambda model, batch, *, key: None)
    found = train.Watch(pattern, every=1)(trainer, state, 1)
    return {name.split("/")[1] for name in found}


def by_train_precision(pattern, model, params):
    precision = train.Precision(compute="bfloat16", keep=pattern)
    precision.check(params)
    return moved(jax.tree.map(lambda x: x.dtype == jnp.float32, precision.cast(params)))


def moved(tree):
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {".".join(str(key.key) for key in path) for path, x in leaves if np.any(x)}


PLACES = {
    name.removeprefix("by_"): place for name, place in list(globals().items()) if "by_" in name[:3]
}


def test_the_suite_is_as_large_as_it_says():
    assert len(CASES) >= 60
    assert len(PLACES) >= 9


@pytest.mark.parametrize("place", PLACES)
def test_every_place_takes_the_same_patterns(place, model, params):
    chosen = {}
    for pattern in GOOD:
        # The rest rule of a route would be the first for nothing, a plan without sites is refused.
        if GOOD[pattern] == SITES and place in ("optim_route", "quant_skip"):
            continue
        # A plan quantizes embedding and head by name, and refuses a rule that matches them alone.
        if pattern == "*" and place in ("quant_plan", "quant_skip"):
            continue
        chosen[pattern] = PLACES[place](pattern, model, params)
    assert chosen == {pattern: GOOD[pattern] for pattern in chosen}


@pytest.mark.parametrize("place", PLACES)
def test_every_place_refuses_what_matches_nothing_with_near_names(place, model, params):
    for pattern in UNMATCHED:
        # A model has modules without a matrix, such as layers.1, which select knows.
        if place == "models_select" and pattern in ("layers", "layers.1", "layers.#", "layers.1.*"):
            continue
        if place == "models_select" and pattern == "*norm*":
            continue
        with pytest.raises(
            ValueError, match=r"which matches none of \d+.*; (the nearest|write)"
        ) as e:
            PLACES[place](pattern, model, params)
        assert repr(pattern) in str(e.value)


@pytest.mark.parametrize("place", PLACES)
def test_every_place_refuses_what_is_no_pattern(place, model, params):
    for pattern in BAD:
        with pytest.raises(ValueError, match=r"(glob|braces|segment).*got .*write ") as error:
            PLACES[place](pattern, model, params)
        assert repr(pattern) in str(error.value)


def test_the_trainer_and_the_filter_take_the_names_of_parameters(model):
    names = {f"layers.{i}.attn.q.kernel" for i in (1, 10)}
    where = "layers.{1,10}.attn.q.*"
    state = nnx.state(model, models.trainable(where, model=model))
    assert {".".join(map(str, path)) for path, _ in nnx.to_flat_state(state)} == names
    trainer = train.Trainer(optax.sgd(0.1), lambda model, batch, *, key: None, trainable=where)
    assert set(checkpoint.digest(trainer.init(model).params)) == names


@pytest.mark.parametrize(
    "pattern, wider",
    {
        "layers.1": "layers.1.**",
        "layers.1.*": "layers.1.**",
        "*.q": "**.q",
        "attn.q": "**.attn.q",
        "mlp": "**.mlp.**",
        "q": "**.q",
    }.items(),
)
def test_a_pattern_of_too_few_segments_is_answered_with_one_that_matches(pattern, wider):
    count = sum(MODULES[0].Pattern(wider).matches(name) for name in SITES)
    message = f"got {pattern!r}, which matches none of {len(SITES)} names; write {wider!r}, which "
    with pytest.raises(ValueError, match=re.escape(f"{message}matches {count}")):
        MODULES[0].select(pattern, SITES)


def test_a_parameter_has_one_name_wherever_it_lies():
    class Value(nnx.Module):
        """A layer whose parameter is called as Flax's attribute is."""

        def __init__(self):
            self.value = nnx.Param(jnp.zeros(3))
            self.layers = nnx.List([nnx.Linear(2, 3, rngs=nnx.Rngs(0)) for _ in range(2)])

    state = nnx.state(Value(), nnx.Param)
    expected = ["layers.0.bias", "layers.0.kernel", "layers.1.bias", "layers.1.kernel", "value"]
    for module in MODULES:
        assert module.names_of(state) == expected
        assert module.names_of(nnx.to_pure_dict(state)) == expected
        assert module.names_of(nnx.as_pure(state)) == expected
        assert [module.name_of(path) for path, _ in nnx.to_flat_state(state)] == expected
        assert module.names_of({"a/b": [1.0, (2.0,)]}) == ["a.b.0", "a.b.1.0"]
        assert module.names_of(1.0) == [""]
        assert module.Pattern("").matches("")
        assert module.Pattern("**").matches("")
        assert not module.Pattern("*").matches("")


SEGMENT = st.text("ab01_", min_size=1, max_size=3)
NAME = st.lists(SEGMENT, min_size=1, max_size=4).map(".".join)
GLOB = st.lists(st.sampled_from(["a", "b0", "*", "**", "#", "a*", "*_*", "{a,b}"]), min_size=1)


@given(NAME, GLOB.map(".".join))
def test_patterns_mean_what_a_plain_matcher_says(name, glob):
    assert MODULES[0].Pattern(glob).matches(name) == any(
        plain(name.split("."), choice.split("."))
        for choice in map("".join, itertools.product(*split_braces(glob)))
    )


def split_braces(glob):
    pieces = re.split(r"(\{[^}]*\})", glob)
    return [p[1:-1].split(",") if p.startswith("{") else [p] for p in pieces]


def plain(name, glob):
    """Segment by segment, without regular expressions."""
    if not glob:
        return not name
    if glob[0] == "**":
        return any(plain(name[i:], glob[1:]) for i in range(len(name) + 1))
    return bool(name) and within(name[0], glob[0]) and plain(name[1:], glob[1:])


def within(text, glob):
    if not glob:
        return not text
    if glob[0] == "*":
        return any(within(text[i:], glob[1:]) for i in range(len(text) + 1))
    if glob[0] == "#":
        digits = [text[:i] for i in range(1, len(text) + 1) if text[:i].isdigit()]
        return any(
            within(text[len(d) :], glob[1:]) for d in digits if d == "0" or not d.startswith("0")
        )
    return text[:1] == glob[0] and within(text[1:], glob[1:])

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Fresh parameters, made on the mesh where they will live.

Eager and jitted initialisers can differ in the last bit, so everything here is jitted, with one
program per kind of layer: a deep model compiles as fast as a shallow one. The bits depend on the
seed and the leaf alone, never on the mesh.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, overload

import jax
from flax import nnx
from jax.sharding import Mesh

from dovetail_models.build import AnyConfig, AnyModel, build
from dovetail_models.config import Config
from dovetail_models.decoder import Decoder
from dovetail_models.encoder import TextEncoder
from dovetail_models.encoder_config import DualConfig, TextConfig, VisionConfig
from dovetail_models.shard import RULES, WEIGHTS, Rules, shardings
from dovetail_models.vision import DualEncoder, VisionEncoder


@overload
def init(config: Config, *, mesh: Mesh | None = ..., rules: Rules = ..., seed: int) -> Decoder: ...
@overload
def init(
    config: TextConfig, *, mesh: Mesh | None = ..., rules: Rules = ..., seed: int
) -> TextEncoder: ...
@overload
def init(
    config: VisionConfig, *, mesh: Mesh | None = ..., rules: Rules = ..., seed: int
) -> VisionEncoder: ...
@overload
def init(
    config: DualConfig, *, mesh: Mesh | None = ..., rules: Rules = ..., seed: int
) -> DualEncoder: ...
def init(
    config: AnyConfig, *, mesh: Mesh | None = None, rules: Rules = RULES, seed: int
) -> AnyModel:
    """A model with fresh float32 parameters: matrices normal(0, init_std), biases 0, norms 1.

    The same seed gives the same bits on every mesh. Without a mesh the parameters lie on the
    default device, uncommitted.
    """
    model = outline(config, rules=rules)
    places = None if mesh is None else shardings(model, mesh, rules=rules, only=WEIGHTS)
    _fill(model, config, places, jax.random.key(seed))
    return model


def outline(config: AnyConfig, *, rules: Rules = RULES) -> Any:
    """The model of `config` with a float32 `jax.ShapeDtypeStruct` for each parameter."""
    if isinstance(config, DualConfig):
        return nnx.eval_shape(lambda: build(config, rngs=nnx.Rngs(0))).configure(rules=rules)
    # Tracing a layer takes 25 ms and copying it one, so each kind is traced once.
    kinds = tuple(dict.fromkeys(config.layers))
    few = dataclasses.replace(config, layers=kinds)
    model: Any = nnx.eval_shape(lambda: build(few, rngs=nnx.Rngs(0)))
    blocks = dict(zip(kinds, model.layers, strict=True))
    model.layers = nnx.List(nnx.clone(blocks[layer]) for layer in config.layers)
    model.config = config
    return model.configure(rules=rules)


def _fill(model: Any, config: AnyConfig, places: nnx.State | None, key: jax.Array) -> None:
    """Give the outline of a model its parameters, in place."""
    towers = ("text", "vision") if isinstance(config, DualConfig) else ()
    apart = towers or ("layers",)
    shell = _fresh(_shallow(config), lambda state: _without(state, apart))
    shell_places = None if places is None else _without(places, apart)
    nnx.update(model, jax.jit(shell, out_shardings=shell_places)(key))
    for i, tower in enumerate(towers):
        part = None if places is None else places[tower]
        inner = getattr(model, tower), getattr(config, tower)
        _fill(*inner, part, jax.random.fold_in(key, i))
    if not isinstance(config, DualConfig):
        _fill_layers(model, config, places, key)


def _fill_layers(
    model: Any,
    config: Config | TextConfig | VisionConfig,
    places: nnx.State | None,
    key: jax.Array,
) -> None:
    programs = {}
    for i, layer in enumerate(config.layers):
        if layer not in programs:
            place = None if places is None else places["layers"][i]
            one = dataclasses.replace(config, layers=(layer,))
            make = _fresh(one, lambda state: state["layers"][0])
            programs[layer] = jax.jit(make, out_shardings=place)
        nnx.update(model.layers[i], programs[layer](jax.random.fold_in(key, i)))


def _fresh(config: AnyConfig, part: Callable[[nnx.State], Any]) -> Callable[[jax.Array], Any]:
    """A function from a key to `part` of the state of a fresh model."""
    return lambda key: part(nnx.state(build(config, rngs=nnx.Rngs(key)), WEIGHTS))


def _shallow(config: AnyConfig) -> AnyConfig:
    """The config with one layer of each stack: the rest of the model has the same parameters."""
    if isinstance(config, DualConfig):
        one = {"text": _shallow(config.text), "vision": _shallow(config.vision)}
        return dataclasses.replace(config, **one)
    return dataclasses.replace(config, layers=config.layers[:1])


def _without(state: nnx.State, names: tuple[str, ...]) -> nnx.State:
    return nnx.State({name: part for name, part in state.items() if name not in names})

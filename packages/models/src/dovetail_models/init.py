# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Fresh parameters, made on the mesh where they will live.

Eager and jitted initialisers can differ in the last bit, so everything here is jitted, with one
program per kind of layer: a deep model compiles as fast as a shallow one. The bits depend on the
seed and the leaf alone, never on the mesh.
"""

import dataclasses
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from dovetail_models.config import Config, Layer
from dovetail_models.decoder import Decoder
from dovetail_models.shard import RULES, Rules, shardings


def init(config: Config, *, mesh: Mesh | None = None, rules: Rules = RULES, seed: int) -> Decoder:
    """A decoder with fresh float32 parameters: matrices normal(0, init_std), biases 0, norms 1.

    The same seed gives the same bits on every mesh. Without a mesh the parameters lie on the
    default device, uncommitted.
    """
    model = outline(config, rules=rules)
    places = None if mesh is None else shardings(model, mesh, rules=rules)
    key = jax.random.key(seed)
    shell = _fresh(config.layers[0], config, lambda state: _without_layers(state))
    shell_places = None if places is None else _without_layers(places)
    nnx.update(model, jax.jit(shell, out_shardings=shell_places)(key))
    programs = {}
    for i, layer in enumerate(config.layers):
        if layer not in programs:
            place = None if places is None else places["layers"][i]
            make = _fresh(layer, config, lambda state: state["layers"][0])
            programs[layer] = jax.jit(make, out_shardings=place)
        nnx.update(model.layers[i], programs[layer](jax.random.fold_in(key, i)))
    return model


def outline(config: Config, *, rules: Rules = RULES) -> Decoder:
    """The decoder of `config` with a float32 `jax.ShapeDtypeStruct` for each parameter."""
    model = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))
    model.rules = rules
    return model


def _fresh(layer: Layer, config: Config, part: Any) -> Any:
    """A function from a key to `part` of the state of a decoder that has just this layer."""
    one = dataclasses.replace(config, layers=(layer,))
    return lambda key: part(nnx.state(Decoder(one, rngs=nnx.Rngs(key)), nnx.Param))


def _without_layers(state: nnx.State) -> nnx.State:
    return nnx.State({name: part for name, part in state.items() if name != "layers"})

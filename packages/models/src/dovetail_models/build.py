# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The module of a configuration, with parameters or with their shapes alone."""

import dataclasses
from typing import Any, TypeAlias

import jax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh

from dovetail_models.config.decoder import Config
from dovetail_models.config.encoder import DualConfig, TextConfig, VisionConfig
from dovetail_models.model.decoder import Decoder
from dovetail_models.model.encoder import TextEncoder
from dovetail_models.model.vision import DualEncoder, VisionEncoder
from dovetail_models.placing.shard import WEIGHTS, Rules, shardings

AnyConfig: TypeAlias = Config | TextConfig | VisionConfig | DualConfig
AnyModel: TypeAlias = Decoder | TextEncoder | VisionEncoder | DualEncoder


def build(config: AnyConfig, *, rngs: nnx.Rngs) -> AnyModel:
    """Builds the module of a configuration, with fresh parameters."""
    if isinstance(config, Config):
        return Decoder(config, rngs=rngs)
    if isinstance(config, TextConfig):
        return TextEncoder(config, rngs=rngs)
    if isinstance(config, VisionConfig):
        return VisionEncoder(config, rngs=rngs)
    return DualEncoder(config, rngs=rngs)


def outline(config: AnyConfig, *, rules: Rules | None = None) -> Any:
    """Returns the model of `config` with a float32 `jax.ShapeDtypeStruct` for each parameter."""
    if isinstance(config, DualConfig):
        return _traced(config).configure(rules=rules)
    # Tracing a layer takes 25 ms and copying it one, so each kind is traced once.
    kinds = tuple(dict.fromkeys(config.layers))
    few = dataclasses.replace(config, layers=kinds)
    model = _traced(few)
    blocks = dict(zip(kinds, model.layers, strict=True))
    model.layers = nnx.List(nnx.clone(blocks[layer]) for layer in config.layers)
    model.config = config
    return model.configure(rules=rules)


def _traced(config: AnyConfig) -> Any:
    # Under a mesh of Auto axes, Flax reads the logical names of parameters as axes of that mesh.
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        return nnx.eval_shape(lambda: build(config, rngs=nnx.Rngs(0)))


def place_on(model: nnx.Module, mesh: Mesh | AbstractMesh | None, rules: Rules | None) -> None:
    """Gives the structs of `model` their shardings.

    Args:
        model: A model from `outline`.
        mesh: The mesh; may be abstract. None leaves the structs unchanged.
        rules: Placement rules; see `shardings`. None: `RULES`.
    """
    if mesh is None:
        return
    structs, tree = jax.tree.flatten(nnx.state(model, WEIGHTS))
    places = jax.tree.leaves(shardings(model, mesh, rules=rules, only=WEIGHTS))
    placed = [
        jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=place)
        for struct, place in zip(structs, places, strict=True)
    ]
    nnx.update(model, jax.tree.unflatten(tree, placed))

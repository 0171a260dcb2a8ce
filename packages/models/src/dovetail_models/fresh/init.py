# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Models without files: fresh parameters, created on their mesh, or shapes alone.

Eager and jitted initialisers can differ in the last bit, so everything here is jitted, with one
program per kind of layer: a deep model compiles as fast as a shallow one. The bits depend only on
the seed and the leaf, never on the mesh.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, overload

import jax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh

from dovetail_models import _elsewhere
from dovetail_models.build import AnyConfig, AnyModel, build, outline, place_on
from dovetail_models.config.decoder import Config
from dovetail_models.config.encoder import DualConfig, TextConfig, VisionConfig
from dovetail_models.hf.load import plan
from dovetail_models.model.decoder import Decoder
from dovetail_models.model.encoder import TextEncoder
from dovetail_models.model.vision import DualEncoder, VisionEncoder
from dovetail_models.placing.shard import WEIGHTS, Rules, shardings


@overload
def init(
    config: Config, *, mesh: Mesh | None = ..., rules: Rules | None = ..., seed: int
) -> Decoder: ...
@overload
def init(
    config: TextConfig, *, mesh: Mesh | None = ..., rules: Rules | None = ..., seed: int
) -> TextEncoder: ...
@overload
def init(
    config: VisionConfig, *, mesh: Mesh | None = ..., rules: Rules | None = ..., seed: int
) -> VisionEncoder: ...
@overload
def init(
    config: DualConfig, *, mesh: Mesh | None = ..., rules: Rules | None = ..., seed: int
) -> DualEncoder: ...
@_elsewhere.init
@jax.transfer_guard("allow")  # the user's guard is for the steps of training
def init(
    config: AnyConfig, *, mesh: Mesh | None = None, rules: Rules | None = None, seed: int
) -> AnyModel:
    """Creates a model with fresh float32 parameters: matrices normal(0, init_std), biases 0, norms
    1.

    Args:
        config: Configuration of a decoder or an encoder.
        mesh: Mesh of the parameters. Default: the default device, uncommitted.
        rules: Sharding rules. None: `RULES`.
        seed: Seed. It gives the same bits on every mesh.

    Raises:
        TypeError: `config` is not a configuration, such as a name.
        ValueError: The mesh axes of a rule do not divide a dimension.

    Example:

        >>> from dovetail_models import init, llama
        >>> model = init(llama(vocab_size=64, embed=16, depth=1, heads=2, mlp=32), seed=0)
        >>> model.layers[0].attn.q.kernel.shape
        (16, 16)
    """
    if not isinstance(config, Config | TextConfig | VisionConfig | DualConfig):
        raise TypeError(
            f"config must be a configuration, got config={config!r}. Build one with a family, as "
            "llama(vocab_size=..., ...), or use load(path) for a directory."
        )
    model = outline(config, rules=rules)
    places = None if mesh is None else shardings(model, mesh, rules=rules, only=WEIGHTS)
    _fill(model, config, places, jax.random.key(seed))
    return model


@overload
def abstract(
    path_or_config: Config,
    *,
    mesh: Mesh | AbstractMesh | None = ...,
    rules: Rules | None = ...,
    allow: tuple[str, ...] = ...,
    ignore: tuple[str, ...] = ...,
) -> Decoder: ...
@overload
def abstract(
    path_or_config: TextConfig,
    *,
    mesh: Mesh | AbstractMesh | None = ...,
    rules: Rules | None = ...,
    allow: tuple[str, ...] = ...,
    ignore: tuple[str, ...] = ...,
) -> TextEncoder: ...
@overload
def abstract(
    path_or_config: VisionConfig,
    *,
    mesh: Mesh | AbstractMesh | None = ...,
    rules: Rules | None = ...,
    allow: tuple[str, ...] = ...,
    ignore: tuple[str, ...] = ...,
) -> VisionEncoder: ...
@overload
def abstract(
    path_or_config: DualConfig,
    *,
    mesh: Mesh | AbstractMesh | None = ...,
    rules: Rules | None = ...,
    allow: tuple[str, ...] = ...,
    ignore: tuple[str, ...] = ...,
) -> DualEncoder: ...
@overload
def abstract(
    path_or_config: str | Path,
    *,
    mesh: Mesh | AbstractMesh | None = ...,
    rules: Rules | None = ...,
    allow: tuple[str, ...] = ...,
    ignore: tuple[str, ...] = ...,
) -> Any: ...
def abstract(
    path_or_config: str | Path | AnyConfig,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    rules: Rules | None = None,
    allow: tuple[str, ...] = (),
    ignore: tuple[str, ...] = (),
) -> Any:
    """Returns a model with a `jax.ShapeDtypeStruct` for each parameter.

    The model is the decoder or encoder of `load`, `load_encoder` or `init`. Of files only the
    headers are read.

    Args:
        path_or_config: Directory of a model, or a configuration.
        mesh: Placement; each struct then has its sharding. May be abstract. None: no sharding.
        rules: Placement rules; see `shardings`. None: `RULES`.
        allow: Unknown config.json keys to accept.
        ignore: Patterns of extra tensors to leave out, as for `load`.

    Returns:
        The model. Its structs have the dtypes of the files, or float32 for a configuration.

    Raises:
        FileNotFoundError: config.json or a file is missing.
        ValueError: As for `load`: keys, names, shapes or mesh axes do not fit.

    Example:

        >>> from dovetail_models import llama
        >>> config = llama(vocab_size=64, embed=16, depth=1, heads=4, mlp=32)
        >>> abstract(config).lm_head.kernel.shape
        (16, 64)
    """
    if isinstance(path_or_config, str | Path):
        model, _ = plan(Path(path_or_config), rules=rules, allow=allow, ignore=ignore)
    else:
        model = outline(path_or_config, rules=rules)
    place_on(model, mesh, rules)
    return model


def _fill(model: Any, config: AnyConfig, places: nnx.State | None, key: jax.Array) -> None:
    """Sets the parameters of a model without arrays, in place."""
    towers = ("text", "vision") if isinstance(config, DualConfig) else ()
    apart = towers or ("layers",)
    shell = _fresh(_shallow(config), lambda state: _without(state, apart))
    shell_places = None if places is None else _without(places, apart)
    nnx.update(model, jax.jit(shell, out_shardings=shell_places)(key))
    for i, tower in enumerate(towers):
        tower_places = None if places is None else places[tower]
        inner = getattr(model, tower), getattr(config, tower)
        _fill(*inner, tower_places, jax.random.fold_in(key, i))
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
            shallow = dataclasses.replace(config, layers=(layer,))
            make = _fresh(shallow, lambda state: state["layers"][0])
            programs[layer] = jax.jit(make, out_shardings=place)
        nnx.update(model.layers[i], programs[layer](jax.random.fold_in(key, i)))


def _fresh(config: AnyConfig, select: Callable[[nnx.State], Any]) -> Callable[[jax.Array], Any]:
    """Returns a function from a key to `select` of a fresh model's state."""
    return lambda key: select(nnx.state(build(config, rngs=nnx.Rngs(key)), WEIGHTS))


def _shallow(config: AnyConfig) -> AnyConfig:
    """Returns the config with one layer per stack. All other parameters stay the same."""
    if isinstance(config, DualConfig):
        towers = {"text": _shallow(config.text), "vision": _shallow(config.vision)}
        return dataclasses.replace(config, **towers)
    return dataclasses.replace(config, layers=config.layers[:1])


def _without(state: nnx.State, names: tuple[str, ...]) -> nnx.State:
    return nnx.State({name: value for name, value in state.items() if name not in names})

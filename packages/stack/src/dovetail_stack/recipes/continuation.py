# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Continued training of a Hugging Face model, whole or by adapters: a recipe for `fit`."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from dovetail_data import Pretrained
from dovetail_models import Config, Decoder, abstract, load, lora
from dovetail_models.hf.directory import read_config
from dovetail_models.hf.hub import resolve
from dovetail_stack.recipes.fitting import (
    AnyMesh,
    Recipe,
    attention,
    configured,
    here,
    make_trainer,
)
from dovetail_stack.recipes.language_model import schedule
from dovetail_stack.recipes.options import Tuning
from dovetail_train import Trainer, lm_loss


def opened(directory: Path, *, length: int) -> tuple[Config, Pretrained]:
    """Reads the configuration and the tokenizer of a directory. Reads no weights.

    Raises ValueError for a quantized directory, and a `length` above the model's positions.
    """
    directory = resolve(directory)
    if "quantization_config" in read_config(directory):
        raise ValueError(
            f"training needs weights that are not quantized, got {str(directory)!r} with a "
            f"quantization_config: write them anew with dovetail models convert {directory} "
            "--out DIR"
        )
    config, tokenizer = abstract(directory).config, Pretrained(directory)
    if length > config.max_length:
        raise ValueError(
            f"rows must fit the {config.max_length} positions that the model was made for, got "
            f"length={length}: pass --length {config.max_length}"
        )
    return config, tokenizer


def trainer(tuning: Tuning, *, steps: int, mesh: AnyMesh | None = None) -> Trainer:
    """Returns a trainer with Adam and gradient clipping at norm 1. Parameters stay float32.

    Args:
        tuning: Settings.
        steps: Steps of the learning-rate schedule.
        mesh: Devices. Default: the first one.
    """
    rate = schedule(tuning.learning_rate, steps=steps)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate, b2=0.95))
    loss = lm_loss(attention=attention)
    return make_trainer(tuning, tx, loss, mesh=mesh, trainable=trainable(tuning))


def trainable(tuning: Tuning) -> Any:
    """Returns the filter of trained parameters: the adapters if there are any, else all."""
    return nnx.LoRAParam if tuning.lora_rank else nnx.Param


def start(directory: Path, tuning: Tuning, *, mesh: AnyMesh | None = None) -> Decoder:
    """Loads the directory's model in float32, with an adapter on each matrix of the layers if
    asked.

    Adapters on attention alone learn less than as many parameters spread over all matrices
    (Dettmers et al. 2023, 2305.14314, section 4). Routers and experts get none.

    Args:
        directory: Hugging Face directory.
        tuning: Settings; `lora_rank` 0 means no adapters.
        mesh: Devices. Default: the first one.
    """
    return adapted(load(directory, mesh=here(mesh), dtype="float32"), tuning)


def adapted(model: Decoder, tuning: Tuning) -> Decoder:
    """Adds adapters and rematerialization to a model, as configured."""
    model = configured(model, tuning)
    if not tuning.lora_rank:
        return model
    rngs, rank, alpha = nnx.Rngs(tuning.seed), tuning.lora_rank, tuning.lora_alpha
    return lora.insert(model, sites(model), rank=rank, alpha=alpha, rngs=rngs)


def sites(model: Decoder) -> tuple[str, ...]:
    """Returns the paths of the matrices that get adapters: those of the layers but routers."""
    paths = (
        ".".join(map(str, path)) for path, module in nnx.iter_modules(model) if _is_matrix(module)
    )
    return tuple(path for path in paths if path.startswith("layers.") and "router" not in path)


def outline(directory: Path, tuning: Tuning, *, mesh: AnyMesh | None = None) -> Decoder:
    """Returns the model of `start` by shapes. Reads no weights.

    Args:
        directory: Hugging Face directory.
        tuning: Settings.
        mesh: Devices; may be abstract.
    """
    model = abstract(directory, mesh=mesh)

    def full(x: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding)

    nnx.update(model, jax.tree.map(full, nnx.state(model)))
    return nnx.eval_shape(lambda: adapted(model, tuning))


def _is_matrix(module: nnx.Module) -> bool:
    return type(module) is nnx.Linear


def continuation(directory: Path, tuning: Tuning, *, mesh: AnyMesh | None = None) -> Recipe:
    """Returns a recipe that trains the model of a Hugging Face directory.

    Adapters are merged at the end. Pass the recipe to `fit`.

    Args:
        directory: Hugging Face directory with a tokenizer.
        tuning: Settings; `lora_rank` above 0 trains adapters alone.
        mesh: Devices; abstract for `estimate_step` alone. Default: the first device.
    """
    return Recipe(
        batching=tuning,
        trainer=lambda steps: trainer(tuning, steps=steps, mesh=mesh),
        model=lambda: start(directory, tuning, mesh=mesh),
        outline=lambda: outline(directory, tuning, mesh=mesh),
        trainable=trainable(tuning),
        decoder=lambda model: model,
        finished=lora.merge if tuning.lora_rank else lambda model: model,
    )

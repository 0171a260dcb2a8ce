# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Training a directory's model on, whole or by adapters, on text or conversations: for `fit`.

The loss is the language model's. In rows of conversations the mask counts the answers alone.
"""

from pathlib import Path
from typing import Any

import optax
from flax import nnx

from dovetail_data import Pretrained
from dovetail_models import Config, abstract
from dovetail_models.hf.directory import read_config
from dovetail_models.hf.hub import resolve
from dovetail_stack.recipes import adapters
from dovetail_stack.recipes.fitting import AnyMesh, Recipe, attention
from dovetail_stack.recipes.language_model import schedule
from dovetail_stack.recipes.record_options import Tuning
from dovetail_train import lm_loss


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
    check_positions(config, length=length)
    return config, tokenizer


def check_positions(config: Any, *, length: int) -> None:
    """Raises ValueError if rows are longer than the model's positions."""
    if length > config.max_length:
        raise ValueError(
            f"rows must fit the {config.max_length} positions that the model was made for, got "
            f"length={length}: pass --length {config.max_length}"
        )


def optimizer(learning_rate: float, *, steps: int) -> optax.GradientTransformation:
    """Returns Adam after clipping at norm 1, with `schedule` from a peak rate over `steps`."""
    rate = schedule(learning_rate, steps=steps)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate, b2=0.95))


def continuation(directory: Path, tuning: Tuning, *, mesh: AnyMesh | None = None) -> Recipe:
    """Returns a recipe that trains the model of a Hugging Face directory.

    Pass it to `fit`, with packed rows of text or of `dovetail_data.Chat`. Parameters stay float32,
    and adapters are merged at the end.

    Args:
        directory: Hugging Face directory with a tokenizer.
        tuning: Settings; `lora_rank` above 0 trains adapters alone.
        mesh: Devices; abstract for `estimate_step` alone. Default: the first device.
    """
    return Recipe(
        batching=tuning,
        tx=lambda steps: optimizer(tuning.learning_rate, steps=steps),
        loss=lm_loss(attention=attention),
        model=lambda: adapters.start(directory, tuning, mesh=mesh),
        outline=lambda: adapters.outline(directory, tuning, mesh=mesh),
        mesh=mesh,
        trainable=nnx.LoRAParam if tuning.lora_rank else nnx.Param,
        finished=lambda model: adapters.merged(model, tuning),
    )

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A reward model from pairs of answers: a recipe for `fit`, and its export for transformers.

The head is one column, without a bias, over the features after the last id of an answer, as the
sequence classifiers of transformers have it.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from dovetail_data.tokenizing.template_files import read_json, text_of
from dovetail_models import add_classifier, save
from dovetail_stack.recipes.continuation import continuation
from dovetail_stack.recipes.fitting import AnyMesh, Recipe, attention, pair_fields
from dovetail_stack.recipes.record_options import Adapting, Rewarding
from dovetail_train import Loss
from dovetail_tune import RewardModel, reward_model


def loss_of(rewarding: Rewarding) -> Loss:
    """Returns the loss of Bradley and Terry's model over pairs."""
    return reward_model(center=rewarding.center, margin=rewarding.margin, attention=attention)


def headed(decoder: Any, tuning: Adapting) -> RewardModel:
    """Returns a reward model over a decoder.

    The seed draws the head, with a variance of 1 / (D + 1) (2009.01325).
    """
    width = decoder.config.embed
    draw = nnx.initializers.normal((width + 1) ** -0.5)
    rngs = nnx.Rngs(tuning.seed)
    return RewardModel(decoder, nnx.Linear(width, 1, use_bias=False, kernel_init=draw, rngs=rngs))


def rewarding_recipe(
    directory: Path, rewarding: Rewarding, *, tuning: Adapting, mesh: AnyMesh | None = None
) -> Recipe:
    """Returns a recipe that trains a reward model on the decoder of a directory.

    Pass it to `fit` with rows of `dovetail_data.pairs`. Adapters are merged at the end.

    Args:
        directory: Hugging Face directory with a tokenizer.
        rewarding: The loss.
        tuning: Settings; `lora_rank` above 0 trains adapters and the head alone.
        mesh: Devices; abstract for `estimate_step` alone. Default: the first device.
    """
    base = continuation(directory, tuning, mesh=mesh)
    head = nnx.All(nnx.Param, nnx.PathContains("head"))

    def outline() -> RewardModel:
        decoder: Any = base.outline()
        return nnx.eval_shape(lambda: headed(decoder, tuning))

    return dataclasses.replace(
        base,
        loss=loss_of(rewarding),
        model=lambda: headed(base.model(), tuning),
        outline=outline,
        trainable=nnx.Any(base.trainable, head) if tuning.lora_rank else base.trainable,
        decoder=lambda model: model.decoder,
        finished=lambda model: RewardModel(base.finished(model.decoder), model.head),
        fields=pair_fields(tuning, *([rewarding.margin] if rewarding.margin else [])),
    )


def save_classifier(model: Any, path: Path, *, like: Path) -> None:
    """Writes a reward model as a sequence classifier of transformers with one label.

    Args:
        model: A `RewardModel` over a decoder without adapters, with a linear head.
        path: A new directory.
        like: Directory with the tokenizer's files.

    Raises:
        ValueError: transformers has no sequence classifier of the family.
    """
    save(model.decoder, path, like=like)
    kernel = np.asarray(model.head.kernel.get_value(), np.float32)
    add_classifier(path, kernel, labels=["reward"], pad_id=_pad_id(like))


def _pad_id(directory: Path) -> int | None:
    """Returns the id of the tokenizer's padding, unless it ends texts too."""
    config = read_json(directory / "tokenizer_config.json")
    pad, eos = (text_of(config.get(key)) for key in ("pad_token", "eos_token"))
    if not pad or pad == eos:
        return None
    vocabulary = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))
    return next((t["id"] for t in vocabulary["added_tokens"] if t["content"] == pad), None)

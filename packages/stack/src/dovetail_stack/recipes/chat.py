# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Supervised tuning of a chat model, whole or by adapters: a recipe for `fit`.

It is the language model's loss over rows whose mask counts the answers. Rows are packed, and a
token attends to its own conversation alone.
"""

from pathlib import Path

import optax

from dovetail_stack.recipes import adapters
from dovetail_stack.recipes.continuation import trainable
from dovetail_stack.recipes.fitting import AnyMesh, Recipe, attention, make_trainer
from dovetail_stack.recipes.language_model import schedule
from dovetail_stack.recipes.record_options import Adapting
from dovetail_train import lm_loss


def optimizer(learning_rate: float, *, steps: int) -> optax.GradientTransformation:
    """Returns Adam after gradient clipping at norm 1.

    Args:
        learning_rate: Its peak.
        steps: Steps of the learning-rate schedule.
    """
    rate = schedule(learning_rate, steps=steps)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate, b2=0.95))


def chatting(directory: Path, tuning: Adapting, *, mesh: AnyMesh | None = None) -> Recipe:
    """Returns a recipe that trains the model of a directory on the masked ids of its rows.

    Adapters are merged at the end. Pass the recipe to `fit`, with rows packed from a corpus of
    `dovetail_data.Chat`.

    Args:
        directory: Hugging Face directory with a tokenizer.
        tuning: Settings; `lora_rank` above 0 trains adapters alone.
        mesh: Devices; abstract for `estimate_step` alone. Default: the first device.
    """
    loss = lm_loss(attention=attention)
    return Recipe(
        batching=tuning,
        trainer=lambda steps: make_trainer(
            tuning,
            optimizer(tuning.learning_rate, steps=steps),
            loss,
            mesh=mesh,
            trainable=trainable(tuning),
        ),
        model=lambda: adapters.start(directory, tuning, mesh=mesh),
        outline=lambda: adapters.outline(directory, tuning, mesh=mesh),
        trainable=trainable(tuning),
        decoder=lambda model: model,
        finished=lambda model: adapters.merged(model, tuning),
    )

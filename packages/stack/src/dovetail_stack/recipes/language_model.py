# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Pretraining of a fresh Llama: model, optimizer and loss as a recipe for `fit`."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from dovetail_data import Tokenizer
from dovetail_models import Config, abstract, init, llama
from dovetail_optim import muon, route
from dovetail_stack.recipes.fitting import (
    AnyMesh,
    Recipe,
    attention,
    configured,
    here,
    make_trainer,
    step_flops,
)
from dovetail_stack.recipes.options import Shape, Training
from dovetail_train import Trainer, lm_loss


def llama_config(
    shape: Shape, tokenizer: Tokenizer, *, length: int, vocab_size: int | None = None
) -> Config:
    """Returns the configuration of a Llama for a tokenizer. Embeddings are tied.

    The beginning-of-text and end-of-text ids are stored in it, so other programs know when to stop.

    Args:
        shape: Sizes.
        tokenizer: The tokenizer.
        length: Length of the training rows.
        vocab_size: Rows of the embedding, if more than the tokenizer's ids.
    """
    config = llama_of(shape, vocab_size=vocab_size or tokenizer.vocab_size, length=length)
    ids = {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
    return dataclasses.replace(
        config, extra=tuple((name, json.dumps(value)) for name, value in ids.items())
    )


def llama_of(shape: Shape, *, vocab_size: int, length: int) -> Config:
    """Returns the configuration of a Llama. Embeddings are tied.

    Args:
        shape: Sizes.
        vocab_size: Rows of the embedding.
        length: Length of the training rows.
    """
    return llama(
        vocab_size=vocab_size,
        embed=shape.embed,
        depth=shape.depth,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        mlp=shape.mlp,
        tie=True,
        max_length=length,
    )


def schedule(peak: float, *, steps: int) -> optax.Schedule:
    """Linear warm-up over the first 5 % of `steps`, cosine decay to 5 % of `peak` at the last."""
    warmup = max(1, steps // 20)
    return optax.schedules.warmup_cosine_decay_schedule(
        0.0, peak, warmup, max(steps, warmup + 1), end_value=peak / 20
    )


def optimizer(
    training: Training, *, steps: int, shardings: Any = "auto"
) -> optax.GradientTransformation:
    """Returns Muon for the matrices of the layers and Adam for the rest, with clipping at norm 1.

    Muon (Jordan et al. 2024) reached AdamW's loss in 0.7 of its steps on the quickstart's model
    (benchmarks/optimizers.py). Embeddings are lookups rather than products: they stay with Adam.

    Args:
        training: Learning rates.
        steps: Steps of the learning-rate schedule.
        shardings: Tree of shardings like the parameters, to gather whole matrices by one exchange
            each way.
    """
    # Not bfloat16, which most CPUs emulate, and which is not what a step's time goes into here.
    matrices = muon(
        schedule(training.matrix_learning_rate, steps=steps),
        exchange=shardings,
        dtype=jnp.float32,
    )
    others = optax.adam(schedule(training.learning_rate, steps=steps), b2=0.95)
    return optax.chain(
        optax.clip_by_global_norm(1.0), route([("**.layers.**.kernel", matrices), ("**", others)])
    )


def trainer(
    config: Config, training: Training, *, steps: int, mesh: AnyMesh | None = None
) -> Trainer:
    """Returns the trainer of a language model: exact cross-entropy per token, any mesh.

    Args:
        config: The model.
        training: Settings.
        steps: Steps of the learning-rate schedule.
        mesh: Devices. Default: the first one.
    """
    tx = transformation(training, steps=steps)
    operations = step_flops(config, training)
    loss = lm_loss(attention=attention)
    return make_trainer(training, tx, loss, mesh=mesh, operations=operations)


def transformation(
    training: Training, *, steps: int
) -> Callable[[Any], optax.GradientTransformation]:
    """Returns `optimizer` as a function of the placed parameters."""

    def tx(params: Any) -> optax.GradientTransformation:
        shardings = jax.tree.map(lambda p: p.sharding, params)
        return optimizer(training, steps=steps, shardings=shardings)

    return tx


def pretraining(config: Config, training: Training, *, mesh: AnyMesh | None = None) -> Recipe:
    """Returns a recipe that trains all parameters of a fresh model.

    Args:
        config: The model.
        training: Settings.
        mesh: Devices; abstract for `estimate_step` alone. Default: the first device.

    Example:

        >>> from dovetail_stack.recipes.language_model import llama_of
        >>> from dovetail_stack.recipes.options import Shape, Training
        >>> config = llama_of(Shape(embed=64, depth=2), vocab_size=512, length=64)
        >>> recipe = pretraining(config, Training(length=64))
    """
    return Recipe(
        batching=training,
        trainer=lambda steps: trainer(config, training, steps=steps, mesh=mesh),
        model=lambda: configured(init(config, mesh=here(mesh), seed=training.seed), training),
        outline=lambda: configured(abstract(config, mesh=mesh), training),
        trainable=nnx.Param,
        decoder=lambda model: model,
        finished=lambda model: model,
    )

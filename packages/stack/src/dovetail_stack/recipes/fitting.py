# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A recipe and packed rows become a trained decoder: model, data, store and metrics joined.

What pretraining, continuing and distilling differ by is a `Recipe`, a value; what they share is
here. So each of them is as long as its idea, and all of them resume by the same lines.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, Mesh

import dovetail_kernels as kernels
from dovetail_checkpoint import Store
from dovetail_data import Rows, batches
from dovetail_models import Config, Decoder, Remat, flops
from dovetail_optim import Guard
from dovetail_stack.recipes.frozen import WithoutFrozen
from dovetail_stack.recipes.options import Batching
from dovetail_train import (
    Estimate,
    Hook,
    Jsonl,
    Loss,
    Precision,
    Result,
    Sink,
    Trainer,
    context_parallel,
    estimate,
)

CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
PROBES = 8  # steps timed to plan a run: enough for a median, few beside the run


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A way to train a decoder.

    trainer: from the number of steps in all. model: makes or reads the module that is trained, with
    the same bits each time. outline: that module by shapes alone, to plan for a mesh that may be
    abstract. trainable: the filter that the trainer has. decoder: the part of that module to
    evaluate. finished: the decoder to export, from the trained module.
    """

    batching: Batching
    trainer: Callable[[int], Trainer]
    model: Callable[[], nnx.Module]
    outline: Callable[[], nnx.Module]
    trainable: Any
    decoder: Callable[[Any], Decoder]
    finished: Callable[[Any], Decoder]


AnyMesh: TypeAlias = Mesh | AbstractMesh
# Of dovetail-kernels, each device for its own rows and heads, and over tokens that are split.
attention = context_parallel(kernels.attention)


def make_trainer(
    batching: Batching,
    tx: Any,
    loss: Loss,
    *,
    mesh: AnyMesh | None,
    trainable: Any = nnx.Param,
    weights: Mapping[str, float] | None = None,
    operations: float | None = None,
) -> Trainer:
    """The trainer of a recipe, as its settings say. operations: of a step, since those of
    attention's kernels cannot be counted from outside."""
    return Trainer(
        tx,
        loss,
        weights=weights,
        mesh=mesh,
        trainable=trainable,
        accumulate=batching.accumulate,
        precision=Precision(compute=batching.precision),
        ema=batching.ema or None,
        guard=Guard(sigma=batching.guard_sigma) if batching.guard_sigma else None,
        seed=batching.seed,
        flops=operations,
    )


def step_flops(config: Config, batching: Batching, *, training: bool = True) -> float:
    """Operations on a step's tokens, those of attention's visible half included."""
    tokens = batching.global_batch * batching.length
    return flops(config, tokens=tokens, length=batching.length, training=training)


def here(mesh: AnyMesh | None) -> Mesh | None:
    """The mesh, of devices that are here, for the arrays of a model to lie on."""
    if isinstance(mesh, AbstractMesh):
        raise RuntimeError(
            f"a model lies on devices, got {mesh}: estimate_step(recipe, device=...)"
        )
    return mesh


def configured(model: Decoder, batching: Batching) -> Decoder:
    """The model, recomputing what the settings say; its layers are scanned then, without which
    recomputation frees no memory on a CPU."""
    if batching.remat == "none":
        return model
    save = ("attn_out",) if batching.remat == "attention" else ()
    return model.configure(scan=True, remat=Remat(save=save))


def estimate_step(recipe: Recipe, *, device: str) -> Estimate:
    """What a step needs on the devices of the recipe's mesh, of that kind, which may be absent."""
    batching = recipe.batching
    shape = batching.global_batch, batching.length
    fields = {"tokens": jnp.int32, "targets": jnp.int32, "segment_ids": jnp.int32}
    fields |= {"positions": jnp.int32, "mask": jnp.float32}
    batch = {name: jax.ShapeDtypeStruct(shape, dtype) for name, dtype in fields.items()}
    return estimate(recipe.trainer(1), recipe.outline(), batch, device=device)


def fit(
    recipe: Recipe,
    rows: Rows,
    directory: Path,
    *,
    steps: int,
    sinks: Sequence[Sink] = (),
    hooks: Sequence[Hook] = (),
    stop: Callable[[int], bool] | None = None,
) -> tuple[Decoder, Result]:
    """Trains to `steps` from the recipe's model, or goes on from what `directory` holds.

    Checkpoints go to `directory`/checkpoints, without the parameters that are not trained, and
    metrics to `directory`/metrics.jsonl. With the same arguments on the same devices, an
    interrupted run ends with the parameters, bit for bit, of one that was not.

    Args:
      steps: optimizer steps in all, those of earlier runs included.
      stop: asked with the number of steps done; True saves and ends.

    Returns:
      The finished decoder, of the averages if there are any, and how the run ended.

    Raises ValueError where parameters that are not trained are others than when the run began.
    """
    run, batching = recipe.trainer(steps), recipe.batching
    # A thread reads ahead; the state that is saved is that of the batch that was trained on.
    data = batches(rows, global_batch=batching.global_batch, seed=batching.seed, threads=1)
    with closing(data), Store(directory / CHECKPOINTS) as store:
        model = recipe.model()
        kept = WithoutFrozen.of(model, store, trainable=recipe.trainable)
        begun = [model]
        del model  # the trainer copies its arrays: nobody else is to hold them
        result = run.fit(
            begun.pop(),
            data,
            steps=steps,
            store=kept,
            save_every=batching.saves_every(steps),
            sinks=[Jsonl(directory / METRICS), *sinks],
            hooks=hooks,
            stop=stop,
        )
    return recipe.finished(run.model(result.state, ema=batching.ema > 0)), result


def steps_in(seconds: float, recipe: Recipe, rows: Rows) -> int:
    """How many steps of this training fit `seconds` on these devices: at least 1.

    Measured, on a throw-away state: the median of PROBES steps after the one that compiles.
    """
    run, batching = recipe.trainer(1000), recipe.batching
    state = run.init(recipe.model())
    data = batches(rows, global_batch=batching.global_batch, seed=batching.seed)
    durations = []
    for batch in islice(data, 1 + PROBES):
        start = time.perf_counter()
        state, metrics = run.step(state, batch)
        jax.block_until_ready((state, metrics))
        durations.append(time.perf_counter() - start)
    return max(1, int(seconds / statistics.median(durations[1:])))

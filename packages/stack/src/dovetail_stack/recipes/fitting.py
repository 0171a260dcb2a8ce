# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Trains a decoder by a recipe: joins model, data, checkpoints and metrics.

A `Recipe` holds the differences between pretraining, continued training and distillation. The rest
is shared and lives here, so all of them resume by the same lines.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, Mesh

import dovetail_kernels as kernels
from dovetail_checkpoint import Store, WithoutFrozen
from dovetail_data import Rows, batches
from dovetail_models import Config, Decoder, Remat, flops
from dovetail_optim import Guard
from dovetail_stack.recipes.options import CHECKPOINTS, METRICS, Batching
from dovetail_train import (
    Estimate,
    Hook,
    Jsonl,
    Loss,
    Precision,
    Program,
    Result,
    Sink,
    Trainer,
    auto_mesh,
    context_parallel,
    estimate,
    process_shard,
)

EVALUATED_ROWS = 64  # of the held-out rows, each time
PROBES = 8  # steps timed to plan a run: enough for a median, few beside the run

AnyMesh: TypeAlias = Mesh | AbstractMesh
# Of dovetail-kernels, each device for its own rows and heads, and over tokens that are split.
attention = context_parallel(kernels.attention)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A way to train a decoder.

    Args:
        batching: Batch, precision and the like.
        tx: Returns the optimizer for a number of steps.
        loss: Loss of the module.
        model: Makes or reads the module to train, with the same bits each time.
        outline: Returns that module by shapes, for a mesh that may be abstract.
        mesh: Devices; abstract for `estimate_step` alone. None: the first device.
        trainable: Filter of trained parameters. Default: all.
        weights: Factors of the terms of the loss.
        operations: Returns the model FLOPs per step; those in attention kernels cannot be counted.
        decoder: Returns the part of the module to evaluate. Default: all of it, here and below.
        finished: Returns the model to export, a decoder or another, from the trained module.
        fields: Fields of a batch by shapes. None: those of text.
        batches: Adds the fields that a loss needs of other rows of a batch.
    """

    batching: Batching
    tx: Callable[[int], Any]
    loss: Loss
    model: Callable[[], nnx.Module]
    outline: Callable[[], nnx.Module]
    mesh: AnyMesh | None = None
    trainable: Any = nnx.Param
    weights: Mapping[str, float] | None = None
    operations: Callable[[], float] | None = None
    decoder: Callable[[Any], Decoder] = lambda module: module
    finished: Callable[[Any], Any] = lambda module: module
    fields: Mapping[str, jax.ShapeDtypeStruct] | None = None
    batches: Callable[[Iterator[Any]], Iterator[Any]] = lambda batches: batches

    def trainer(self, steps: int) -> Trainer:
        """Returns the trainer for a number of steps."""
        batching = self.batching
        return Trainer(
            self.tx(steps),
            self.loss,
            weights=self.weights,
            mesh=self.mesh,
            trainable=self.trainable,
            accumulate=batching.accumulate,
            precision=Precision(compute=batching.precision),
            ema=batching.ema or None,
            guard=Guard(sigma=batching.guard_sigma) if batching.guard_sigma else None,
            seed=batching.seed,
            flops=self.operations and self.operations(),
        )

    def of_decoder(self, loss: Any) -> Any:
        """Returns a loss of the module whose decoder `loss` takes."""
        return lambda module, batch, *, key: loss(self.decoder(module), batch, key=key)


def evaluated_batches(global_batch: int) -> int:
    """Returns the number of held-out batches that are measured each time."""
    return math.ceil(EVALUATED_ROWS / global_batch)


def step_flops(config: Config, batching: Batching, *, training: bool = True) -> float:
    """Returns the FLOPs on a step's tokens, with the visible half of attention.

    Args:
        config: The model.
        batching: Batch and length.
        training: Include the backward pass.
    """
    tokens = batching.global_batch * batching.length
    return flops(config, tokens=tokens, length=batching.length, training=training)


def here(mesh: AnyMesh | None) -> Mesh | None:
    """Returns the mesh of a fresh model, with Auto axes as the trainer's: stores keep its arrays.

    Raises RuntimeError for an abstract mesh.
    """
    if isinstance(mesh, AbstractMesh):
        raise RuntimeError(
            f"a model lies on devices, got {mesh}: estimate_step(recipe, device=...)"
        )
    return None if mesh is None else auto_mesh(mesh)


def configured(model: Any, batching: Batching) -> Any:
    """Configures rematerialization of a decoder or an encoder.

    It also scans the layers, since otherwise recomputation frees no memory on a CPU.
    """
    if batching.remat == "none":
        return model
    save = ("attn_out",) if batching.remat == "attention" else ()
    return model.configure(scan=True, remat=Remat(save=save))


def grouped(model: Decoder, mesh: AnyMesh | None) -> Decoder:
    """Returns a decoder that multiplies each token with its own experts alone, on one device.

    XLA's product multiplies it with all experts on CPUs and GPUs, but XLA divides it among devices.
    """
    if mesh is not None and mesh.size > 1:
        return model
    return model.configure(ragged_dot=kernels.grouped_matmul)


def estimate_step(
    recipe: Recipe,
    *,
    device: str | None = None,
    dcn: Mapping[str, int] | None = None,
    **rates: float,
) -> Estimate:
    """Estimates memory and time of a step on the recipe's mesh, which may be abstract.

    Args:
        recipe: The recipe.
        device: Kind of device, such as "H200". Default: that of an abstract mesh.
        dcn: Slices along each axis that crosses slow links. Default: as the devices lie.
        **rates: Measured rates, as `dovetail_train.estimate` takes them. Default: as published.
    """
    batch = dict(recipe.fields or text_fields(recipe.batching))
    return estimate(recipe.trainer(1), recipe.outline(), batch, device=device, dcn=dcn, **rates)


def step_program(recipe: Recipe) -> Program:
    """Returns the step of a recipe, by shapes, for any compiler."""
    batch = dict(recipe.fields or text_fields(recipe.batching))
    return recipe.trainer(1).program(recipe.outline(), batch)


def text_fields(batching: Batching) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the fields of a batch of text, by shapes."""
    shape = batching.global_batch, batching.length
    fields = {"tokens": jnp.int32, "targets": jnp.int32, "segment_ids": jnp.int32}
    fields |= {"positions": jnp.int32, "mask": jnp.float32}
    return {name: jax.ShapeDtypeStruct(shape, dtype) for name, dtype in fields.items()}


def pair_fields(batching: Batching, *numbers: str) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the fields of a batch of pairs of answers, by shapes, with `numbers` of each row."""
    rows = {"pair_ids": jnp.int32} | dict.fromkeys(numbers, jnp.float32)
    shapes = {k: jax.ShapeDtypeStruct((batching.global_batch,), x) for k, x in rows.items()}
    return text_fields(batching) | shapes


def fit(
    recipe: Recipe,
    rows: Rows,
    directory: Path,
    *,
    steps: int,
    sinks: Sequence[Sink] = (),
    hooks: Sequence[Hook] = (),
    stop: Callable[[int], bool] | None = None,
    resume: Literal["exact", "convert"] = "exact",
    leave_out: Sequence[range] = (),
    before: Callable[[nnx.Module], object] | None = None,
    wrap: Callable[[Any], Any] = lambda store: store,
) -> tuple[Any, Result]:
    """Trains a decoder, or resumes the training in `directory`.

    Checkpoints go to `directory`/checkpoints, without frozen parameters, and metrics to
    `directory`/metrics.jsonl. With the same arguments on the same devices, an interrupted run ends
    with the parameters, bit for bit, of an uninterrupted one. Several processes call it alike and
    share the directory.

    Args:
        recipe: The way to train.
        rows: Packed rows.
        directory: Directory of the run.
        steps: Optimizer steps, those of earlier launches included.
        sinks: Further metric sinks.
        hooks: Hooks of the trainer.
        stop: Receives the number of steps done; True saves and ends.
        resume: "convert" adds or drops averages and guard of a stored run; see `Trainer.fit`.
        leave_out: Steps whose batches are passed over, such as [range(120, 124)]. All other rows
            keep their order. Each range is numbered as in the run without those before it. To leave
            out steps that were made, go back first: `dovetail_checkpoint.rewind`.
        before: Receives the module before the first step, unless there is a checkpoint.
        wrap: Returns the store that the trainer gets, for the store of the run.

    Returns:
        The finished model, of averaged parameters if there are any, and how the run ended.

    Raises:
        ValueError: The frozen parameters, or settings that a resume refuses, differ from those of
            the stored run.
    """
    run, batching = recipe.trainer(steps), recipe.batching
    # A thread reads ahead; the state that is saved is that of the batch that was trained on.
    shard = process_shard(run.mesh)
    order: dict[str, Any] = {"global_batch": batching.global_batch, "seed": batching.seed}
    order["leave_out"] = places_of(leave_out, rows, **order)
    data = batches(rows, shard=shard, threads=1, **order)
    with closing(data), Store(directory / CHECKPOINTS) as store:
        model = recipe.model()
        kept = _without_frozen(store, model, recipe.trainable)
        if before is not None and not any((directory / CHECKPOINTS).glob("[0-9]*")):
            before(model)
        begun = [model]
        del model  # the trainer copies its arrays: nobody else is to hold them
        result = run.fit(
            begun.pop(),
            recipe.batches(data),
            steps=steps,
            store=wrap(kept),
            save_every=batching.saves_every(steps),
            sinks=[Jsonl(directory / METRICS), *sinks],
            hooks=hooks,
            stop=stop,
            resume=resume,
        )
    return recipe.finished(run.model(result.state, ema=batching.ema > 0)), result


def _without_frozen(store: Store, model: nnx.Module, trainable: Any) -> Store | WithoutFrozen:
    """Returns `store` itself if every parameter is trained."""
    _, _, frozen, _ = nnx.split(model, trainable, nnx.Param, ...)
    if not frozen:
        return store
    return WithoutFrozen(store, nnx.to_pure_dict(frozen), item="train", name="frozen")


def places_of(
    steps: Sequence[range], rows: Rows, *, global_batch: int, seed: int
) -> tuple[range, ...]:
    """Returns the places, in the order of `rows`, of the batches of steps.

    Args:
        steps: Ranges of steps. Each is numbered as in a run without those before it.
        rows: Packed rows.
        global_batch: Rows per step.
        seed: Seed of the order.
    """
    places: tuple[range, ...] = ()
    for span in steps:
        it = batches(rows, global_batch=global_batch, seed=seed, leave_out=places)
        places += (range(it.places(span.start).start, it.places(span.stop - 1).stop),)
    return places


def steps_in(seconds: float, recipe: Recipe, rows: Rows) -> int:
    """Returns the number of training steps that fit into `seconds` on these devices; at least 1.

    Times a few steps on a throw-away state, after the one that compiles.

    Args:
        seconds: Time available.
        recipe: The way to train.
        rows: Packed rows.
    """
    run, batching = recipe.trainer(1000), recipe.batching
    state = run.init(recipe.model())
    shard = process_shard(run.mesh)
    data = batches(rows, global_batch=batching.global_batch, seed=batching.seed, shard=shard)
    durations = []
    for batch in islice(recipe.batches(data), 1 + PROBES):
        start = time.perf_counter()
        state, metrics = run.step(state, batch)
        jax.block_until_ready((state, metrics))
        durations.append(time.perf_counter() - start)
    return max(1, int(seconds / statistics.median(durations[1:])))

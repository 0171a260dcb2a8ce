# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Packed rows become a trained decoder: model, optimizer, data and store joined in one call."""

import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from dovetail.recipes.options import Shape, Training
from dovetail_checkpoint import Store
from dovetail_data import Rows, Tokenizer, batches
from dovetail_models import Config, Decoder, init, llama
from dovetail_optim import muon, route
from dovetail_train import Hook, Jsonl, Result, Sink, Trainer, lm_loss

CHECKPOINTS = "checkpoints"
METRICS = "metrics.jsonl"
PROBES = 8  # steps timed to plan a run: enough for a median, few beside the run


def llama_config(shape: Shape, tokenizer: Tokenizer, *, length: int) -> Config:
    """A Llama of that shape for that tokenizer, trained on rows of `length`; embeddings tied.

    The ids that begin and end a text go along, so that other programs know when to stop.
    """
    config = llama(
        vocab_size=tokenizer.vocab_size,
        embed=shape.embed,
        depth=shape.depth,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        mlp=shape.mlp,
        tie=True,
        max_length=length,
    )
    ids = {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
    return dataclasses.replace(
        config, extra=tuple((name, json.dumps(value)) for name, value in ids.items())
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
    """Muon on the matrices inside the layers, Adam on the rest, the gradient's norm cut at 1.

    Muon (Jordan et al. 2024) reached AdamW's loss in 0.7 of its steps on the quickstart's model
    (benchmarks/optimizers.py). Embeddings are matrices too, but lookups: they stay with Adam.
    shardings: a tree like the parameters, for whole matrices by one exchange each way.
    """
    # Not bfloat16, which most CPUs emulate, and which is not what a step's time goes into here.
    matrices = muon(
        schedule(training.matrix_learning_rate, steps=steps),
        exchange=shardings,
        dtype=jnp.float32,
    )
    others = optax.adam(schedule(training.learning_rate, steps=steps), b2=0.95)
    return optax.chain(
        optax.clip_by_global_norm(1.0), route([("layers/**/kernel", matrices), ("**", others)])
    )


def trainer(training: Training, *, steps: int, mesh: Mesh | None = None) -> Trainer:
    """The trainer of a language model: exact cross-entropy per token, any mesh."""

    def tx(params: Any) -> optax.GradientTransformation:
        shardings = jax.tree.map(lambda p: p.sharding, params)
        return optimizer(training, steps=steps, shardings=shardings)

    return Trainer(
        tx,
        lm_loss(),
        mesh=mesh,
        accumulate=training.accumulate,
        seed=training.seed,
    )


def train(
    config: Config,
    rows: Rows,
    directory: Path,
    *,
    training: Training,
    steps: int,
    mesh: Mesh | None = None,
    sinks: Sequence[Sink] = (),
    hooks: Sequence[Hook] = (),
    stop: Callable[[int], bool] | None = None,
) -> tuple[Decoder, Result]:
    """Trains a fresh model to `steps`, or goes on from what `directory` holds.

    Checkpoints go to `directory`/checkpoints and metrics to `directory`/metrics.jsonl. With the
    same arguments on the same devices, an interrupted run ends with the parameters, bit for bit,
    of one that was not.

    Args:
      steps: optimizer steps in all, those of earlier runs included.
      stop: asked with the number of steps done; True saves and ends.

    Returns:
      The trained model and how the run ended.
    """
    run = trainer(training, steps=steps, mesh=mesh)
    # A thread reads ahead; the state that is saved is that of the batch that was trained on.
    data = batches(rows, global_batch=training.global_batch, seed=training.seed, threads=1)
    with closing(data), Store(directory / CHECKPOINTS) as store:
        result = run.fit(
            init(config, mesh=mesh, seed=training.seed),
            data,
            steps=steps,
            store=store,
            save_every=training.saves_every(steps),
            sinks=[Jsonl(directory / METRICS), *sinks],
            hooks=hooks,
            stop=stop,
        )
    model = run.model(result.state)
    assert isinstance(model, Decoder)
    return model, result


def steps_in(
    seconds: float, config: Config, rows: Rows, *, training: Training, mesh: Mesh | None = None
) -> int:
    """How many steps of this training fit `seconds` on these devices: at least 1.

    Measured, on a throw-away state: the median of PROBES steps after the one that compiles.
    """
    run = trainer(training, steps=1000, mesh=mesh)
    state = run.init(init(config, mesh=mesh, seed=training.seed))
    data = batches(rows, global_batch=training.global_batch, seed=training.seed)
    durations = []
    for batch in islice(data, 1 + PROBES):
        start = time.perf_counter()
        state, metrics = run.step(state, batch)
        jax.block_until_ready((state, metrics))
        durations.append(time.perf_counter() - start)
    return max(1, int(seconds / statistics.median(durations[1:])))

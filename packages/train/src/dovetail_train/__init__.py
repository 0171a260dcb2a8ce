# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer for any NNX module, Optax transformation and mesh.

    >>> import numpy as np, optax
    >>> from flax import nnx
    >>> from dovetail_train import Trainer
    >>> def loss(model, batch, *, key):
    ...     error = (model(batch["x"]) - batch["y"]) ** 2
    ...     return error.sum(), error.size * 1.0
    >>> data = [{"x": np.ones((4, 8), "f4"), "y": np.ones((4, 1), "f4")}] * 20
    >>> model = nnx.Linear(8, 1, rngs=nnx.Rngs(0))
    >>> Trainer(optax.adam(1e-2), loss).fit(model, data, steps=20).step
    20

- Training: `Trainer`, `State`, `Metrics`, `Result`, `Precision`, `DrawnData`, `Program`
- Several processes: `initialize_distributed`, `process_shard`, `watch_processes`, `on_first`,
  `check_shared`, `gather_module`
- Losses: `Loss`, `GroupLoss`, `BatchLoss`, `Term`, `Metric`, `DefaultWeight`, `lm_loss`; for your
  own: `over_chunks`, `token_cross_entropy`, `CrossEntropy`
- Devices: `make_mesh`, `abstract_mesh`, `auto_mesh`, `fsdp_shardings`, `place`, `context_parallel`,
  `balanced_order`, `caches_cpu_programs`, `collectives`, `Collective`,
  `slice_ids`
- Estimates and rematerialization: `estimate`, `Estimate`, `Remedy`, `fit_remat`, `Fitted`,
  `count_flops`, `Flops`
- Rejected steps: `StepGuard`, `BadStep`
- Learning rates: `Rated`
- Evaluation: `Eval`, `BitsPerByte`, `loglikelihood`, `rolling_loglikelihood`, `Likelihoods`
- Evaluation by questions: `multiple_choice`, `MultipleChoice`, `Question`, `Answers`, `Share`;
  `LMEval` and its `Sampler` for lm-evaluation-harness
- Hooks: `Hook`, `StopRun`, `Watch`, `Trace`
- Sinks: `Sink`, `Console`, `Jsonl`, `TensorBoard`, `Wandb`; `read_jsonl`
- Stores: `Store`, `PeekStore`, `OrbaxStore`
"""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING

from dovetail_train._elsewhere import PACKAGE as _ELSEWHERE
from dovetail_train._suggestions import public_names as _public_names
from dovetail_train.eval.bits import BitsPerByte, Eval
from dovetail_train.eval.choice import Answers, MultipleChoice, Question, Share, multiple_choice
from dovetail_train.eval.harness import LMEval
from dovetail_train.eval.likelihood import Likelihoods, loglikelihood, rolling_loglikelihood
from dovetail_train.eval.text import Sampler
from dovetail_train.logs.records import read_jsonl
from dovetail_train.logs.sinks import Console, Jsonl, Sink
from dovetail_train.logs.tensorboard import TensorBoard
from dovetail_train.logs.weights_and_biases import Wandb
from dovetail_train.loop.fit import Result
from dovetail_train.loop.hooks import Hook, StopRun
from dovetail_train.loop.prefetch import DrawnData
from dovetail_train.loop.trainer import Trainer
from dovetail_train.loop.watch import Trace, Watch
from dovetail_train.memory.collectives import Collective, collectives
from dovetail_train.memory.estimate import Estimate, estimate
from dovetail_train.memory.remat import Fitted, fit_remat
from dovetail_train.memory.remedies import Remedy
from dovetail_train.mesh.axes import auto_mesh
from dovetail_train.mesh.context import balanced_order, context_parallel
from dovetail_train.mesh.mesh import (
    abstract_mesh,
    caches_cpu_programs,
    fsdp_shardings,
    make_mesh,
    process_shard,
)
from dovetail_train.mesh.processes import (
    check_shared,
    gather_module,
    initialize_distributed,
    on_first,
    watch_processes,
)
from dovetail_train.mesh.slices import slice_ids
from dovetail_train.step.flops import Flops, count_flops
from dovetail_train.step.guard import BadStep, StepGuard
from dovetail_train.step.loss import CrossEntropy, lm_loss, over_chunks, token_cross_entropy
from dovetail_train.step.metrics import Metrics
from dovetail_train.step.options import Precision
from dovetail_train.step.program import Program
from dovetail_train.step.rates import Rated
from dovetail_train.step.state import State, place
from dovetail_train.step.terms import BatchLoss, DefaultWeight, GroupLoss, Loss, Metric, Term
from dovetail_train.store import OrbaxStore, PeekStore, Store

__all__ = [  # noqa: RUF022, by topic
    # Training
    "Trainer",
    "State",
    "Metrics",
    "Result",
    "Precision",
    "Program",
    "DrawnData",
    # Several processes
    "initialize_distributed",
    "process_shard",
    "watch_processes",
    "on_first",
    "check_shared",
    "gather_module",
    # Losses
    "Loss",
    "GroupLoss",
    "BatchLoss",
    "Term",
    "Metric",
    "DefaultWeight",
    "lm_loss",
    "over_chunks",
    "token_cross_entropy",
    "CrossEntropy",
    # Devices
    "make_mesh",
    "abstract_mesh",
    "auto_mesh",
    "fsdp_shardings",
    "place",
    "context_parallel",
    "balanced_order",
    "caches_cpu_programs",
    "collectives",
    "Collective",
    "slice_ids",
    # Estimates and rematerialization
    "estimate",
    "Estimate",
    "Remedy",
    "fit_remat",
    "Fitted",
    "count_flops",
    "Flops",
    # Rejected steps
    "StepGuard",
    "BadStep",
    # Learning rates
    "Rated",
    # Evaluation
    "Eval",
    "BitsPerByte",
    "loglikelihood",
    "rolling_loglikelihood",
    "Likelihoods",
    "multiple_choice",
    "MultipleChoice",
    "Question",
    "Answers",
    "Share",
    "LMEval",
    "Sampler",
    # Hooks
    "Hook",
    "StopRun",
    "Watch",
    "Trace",
    # Sinks
    "Sink",
    "Console",
    "Jsonl",
    "TensorBoard",
    "Wandb",
    "read_jsonl",
    # Stores
    "Store",
    "PeekStore",
    "OrbaxStore",
]

__version__ = _version("dovetail-train")

if not _TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = _public_names(__name__, __all__, "testing", **_ELSEWHERE)

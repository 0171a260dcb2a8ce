# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A trainer for any NNX module, Optax transformation and mesh."""

from dovetail_train._fit import Result as Result
from dovetail_train.context import balanced_order as balanced_order
from dovetail_train.context import context_parallel as context_parallel
from dovetail_train.eval.bits import BitsPerByte as BitsPerByte
from dovetail_train.eval.bits import Eval as Eval
from dovetail_train.flops import Flops as Flops
from dovetail_train.flops import count_flops as count_flops
from dovetail_train.guard import BadStep as BadStep
from dovetail_train.guard import Guard as Guard
from dovetail_train.hooks import Hook as Hook
from dovetail_train.loss import CrossEntropy as CrossEntropy
from dovetail_train.loss import lm_loss as lm_loss
from dovetail_train.mesh import abstract_mesh as abstract_mesh
from dovetail_train.mesh import fsdp_shardings as fsdp_shardings
from dovetail_train.mesh import make_mesh as make_mesh
from dovetail_train.metrics import Metrics as Metrics
from dovetail_train.plan import Plan as Plan
from dovetail_train.plan import plan as plan
from dovetail_train.precision import Precision as Precision
from dovetail_train.program import Program as Program
from dovetail_train.remat import Fitted as Fitted
from dovetail_train.remat import fit_remat as fit_remat
from dovetail_train.sinks import Console as Console
from dovetail_train.sinks import Jsonl as Jsonl
from dovetail_train.sinks import Sink as Sink
from dovetail_train.sinks import read_jsonl as read_jsonl
from dovetail_train.state import State as State
from dovetail_train.step import Loss as Loss
from dovetail_train.step import Metric as Metric
from dovetail_train.step import Term as Term
from dovetail_train.store import OrbaxStore as OrbaxStore
from dovetail_train.store import Store as Store
from dovetail_train.trainer import Trainer as Trainer

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Verified, atomic checkpoints of training state, stored as Orbax checkpoints.

    >>> import jax, jax.numpy as jnp
    >>> from dovetail_checkpoint import Store
    >>> with Store("run") as store:
    ...     store.save(10, metrics={"loss": 0.5}, model={"w": jnp.arange(3.0)})
    ...     step, items = store.restore(model={"w": jax.ShapeDtypeStruct((3,), jnp.float32)})
    >>> step, items["model"]["w"]
    (10, Array([0., 1., 2.], dtype=float32))

- Runs: `Store`, `WithoutFrozen`, `Retention`, `Best`, `rewind`
- Verification: `verify`, `verified_digest`, `digest`
- Loading into another layout: `load`, `explain`; conversion: `export_safetensors`, `convert`
- Rules: `rename`, `stack`, `unstack`, `split`, `fuse`, `transpose`, `cast`, `drop`, `only`,
  `keep_init`
- Inspection: `inspect`, `diff`
- Signals: `on_signal`

The command is `python -m dovetail_checkpoint --help`.
"""

from importlib.metadata import version as _version
from typing import TYPE_CHECKING as _TYPE_CHECKING

from dovetail_checkpoint._elsewhere import PACKAGE as _ELSEWHERE
from dovetail_checkpoint._suggestions import public_names as _public_names
from dovetail_checkpoint.layout.mapping import Explanation
from dovetail_checkpoint.layout.rules import (
    Rule,
    cast,
    drop,
    fuse,
    keep_init,
    only,
    rename,
    split,
    stack,
    transpose,
    unstack,
)
from dovetail_checkpoint.paths.converting import convert
from dovetail_checkpoint.paths.diff import Change, Diff, diff
from dovetail_checkpoint.paths.export import export_safetensors
from dovetail_checkpoint.paths.loading import explain, load
from dovetail_checkpoint.paths.metadata import Checkpoint, Run, inspect
from dovetail_checkpoint.paths.verifying import verified_digest, verify
from dovetail_checkpoint.proof.digest import digest
from dovetail_checkpoint.proof.report import DamageError, IntegrityReport, Problem, StepReport
from dovetail_checkpoint.run.frozen import WithoutFrozen
from dovetail_checkpoint.run.retention import Best, Retention
from dovetail_checkpoint.run.rewinding import rewind
from dovetail_checkpoint.run.steps import SavedStep
from dovetail_checkpoint.run.store import Store
from dovetail_checkpoint.stopping.signals import StopRequest, on_signal

__all__ = [  # noqa: RUF022, by topic
    # Runs
    "Store",
    "WithoutFrozen",
    "SavedStep",
    "Retention",
    "Best",
    "rewind",
    # Verification
    "verify",
    "verified_digest",
    "IntegrityReport",
    "StepReport",
    "Problem",
    "DamageError",
    "digest",
    # Loading and conversion
    "load",
    "explain",
    "Explanation",
    "export_safetensors",
    "convert",
    # Rules
    "Rule",
    "rename",
    "stack",
    "unstack",
    "split",
    "fuse",
    "transpose",
    "cast",
    "drop",
    "only",
    "keep_init",
    # Inspection
    "inspect",
    "Run",
    "Checkpoint",
    "diff",
    "Diff",
    "Change",
    # Signals
    "on_signal",
    "StopRequest",
]

__version__ = _version("dovetail-checkpoint")

if not _TYPE_CHECKING:  # a type checker would accept every name
    __getattr__, __dir__ = _public_names(__name__, __all__, **_ELSEWHERE)

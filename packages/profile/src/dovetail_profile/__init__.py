# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Profiles of JAX programs: where time and memory went, as tables and one page.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from dovetail_profile import capture
    >>> product = jax.jit(lambda x: (x @ x).sum())
    >>> x = jnp.ones((512, 512))
    >>> _ = product(x).block_until_ready()
    >>> with capture() as p:
    ...     for i in range(4):
    ...         with jax.profiler.StepTraceAnnotation("train", step_num=i):
    ...             _ = product(x).block_until_ready()
    >>> p.steps().column("step")
    [0, 1, 2, 3]
    >>> p.ops(by="category")[0].name
    'matmul'

- A profile: `capture` of a block, or `read` of a trace, is a `Profile`; `Damaged` files.
- Its answers: a `Table` of rows, each with its units: `OpRow`, `StepRow`, `RooflineRow`,
  `AnnotationRow`, `ModuleRow`, `CollectiveRow`, `CompileRow`, `Suggestion`; a `DiffTable` of
  `DiffRow`s; the `Memory` of a program with `BufferRow`s, and its `Graph`.
- Compiled programs that never ran: `costs` with `CostRow`s, `memory`, `collectives`.
- This machine: `measure_peaks` gives `Peaks`.
- Long runs: `Monitor`, a hook of a trainer or an object in a loop.

The command `python -m dovetail_profile` runs a script under a capture and asks its trace.
"""

from importlib.metadata import version as _version

from dovetail_profile.capture import capture
from dovetail_profile.costs import CostRow, costs
from dovetail_profile.monitor import Monitor
from dovetail_profile.peaks import Peaks, measure_peaks
from dovetail_profile.profile import Profile, read
from dovetail_profile.table import Table
from dovetail_profile.tables.collectives import CollectiveRow, collectives
from dovetail_profile.tables.compiles import CompileRow
from dovetail_profile.tables.diff import DiffRow, DiffTable
from dovetail_profile.tables.graph import Graph
from dovetail_profile.tables.memory import BufferRow, Memory, memory
from dovetail_profile.tables.modules import ModuleRow
from dovetail_profile.tables.ops import OpRow
from dovetail_profile.tables.roofline import RooflineRow
from dovetail_profile.tables.spans import AnnotationRow
from dovetail_profile.tables.steps import StepRow
from dovetail_profile.tables.suggestions import Suggestion
from dovetail_profile.wire import Damaged

__all__ = [  # noqa: RUF022, by topic
    # A profile
    "capture",
    "read",
    "Profile",
    "Damaged",
    # Its answers
    "Table",
    "OpRow",
    "StepRow",
    "RooflineRow",
    "AnnotationRow",
    "ModuleRow",
    "CollectiveRow",
    "CompileRow",
    "Suggestion",
    "DiffTable",
    "DiffRow",
    "Memory",
    "BufferRow",
    "Graph",
    # Compiled programs
    "costs",
    "CostRow",
    "memory",
    "collectives",
    # This machine
    "measure_peaks",
    "Peaks",
    # Long runs
    "Monitor",
]

__version__ = _version("dovetail-profile")


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})

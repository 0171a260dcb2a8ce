# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""All tables of a recording by name, as files of a profile have them."""

from typing import Any

from dovetail_profile.peaks import Peaks
from dovetail_profile.table import Table
from dovetail_profile.tables.collectives import collectives
from dovetail_profile.tables.compiles import compiles
from dovetail_profile.tables.memory import memory
from dovetail_profile.tables.modules import modules
from dovetail_profile.tables.ops import ops
from dovetail_profile.tables.roofline import roofline
from dovetail_profile.tables.spans import annotations
from dovetail_profile.tables.steps import steps
from dovetail_profile.tables.suggestions import suggestions
from dovetail_profile.trace.recording import Recording

_PROGRAMS = 5  # with tables of memory: those with the most time


def answers(recording: Recording, peaks: Peaks | None) -> dict[str, Table[Any]]:
    """Returns all tables by the names that `content` knows.

    Args:
        recording: The trace.
        peaks: Limits of one device of the trace.
    """
    programs = modules(recording)
    tables: dict[str, Table[Any]] = {
        "suggestions": suggestions(recording, peaks),
        "steps": steps(recording),
        "ops": ops(recording, "op"),
        "ops/source": ops(recording, "source"),
        "ops/scope": ops(recording, "scope"),
        "ops/category": ops(recording, "category"),
        "roofline": roofline(recording, peaks),
        "roofline/scope": roofline(recording, peaks, by="scope"),
        "compiles": compiles(recording),
        "collectives": collectives(recording),
        "annotations": annotations(recording),
        "modules": programs,
    }
    for row in programs.top(_PROGRAMS):
        module = recording.modules.get((recording.hosts.index(row.host), row.id))
        if module and len(module.buffers) and f"memory/{row.program}" not in tables:
            plan = memory(module)
            tables[f"memory/{row.program}"] = plan.at_peak
            tables[f"live/{row.program}"] = plan.over_time
    return tables

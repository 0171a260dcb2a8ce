# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`dovetail train RECIPE --check`: records as the model would see them. Nothing is trained."""

import json
import math
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from dovetail_data import Corpora, Rows, batches
from dovetail_runs import Launch
from dovetail_stack import record_jobs
from dovetail_stack.launch_options import CHECKED_ROWS
from dovetail_stack.launch_settings import accepting, decided
from dovetail_stack.settings import FromRecords
from dovetail_tune import explain

_BLOCK = 64  # rows that are counted at once


def checked(values: dict[str, Any], out: Path | None, *, mesh: Mesh) -> str:
    """Returns the text of a check, or its JSON. It takes the way of a run up to its first batch.

    Args:
        values: Parsed options by name.
        out: Directory of the run. None: a new one.
        mesh: Devices.

    Raises:
        ValueError: Model, template or records do not fit, as a run would say it.
    """
    run, _ = decided(values, out, mesh)
    assert isinstance(run, FromRecords)  # the others do not have the option
    with accepting(run), tempfile.TemporaryDirectory() as scratch:
        job, step = record_jobs.job_of(run, Path(scratch), mesh, Launch()), run.training
        next(job.recipe.batches(batches(job.rows, global_batch=step.global_batch, seed=step.seed)))
        corpora = Corpora.open(scratch)
        rows = record_jobs.rows_of(run, corpora.train)
        shown = rows.batch(np.arange(min(CHECKED_ROWS // rows.unit, len(rows))))
        explanation = explain(shown, tokenizer=record_jobs.tokenizer_of(run), rows=CHECKED_ROWS)
        sides = (corpora.train, corpora.held_out)
        totals = {
            "records": len(corpora.train),
            "held_out": len(corpora.held_out),
            "dropped": sum(side.dropped for side in sides),
            "corrupt": sum(len(side.corrupt) for side in sides),
            "longest_tokens": max(int(side.lengths.max()) for side in sides),
            "rows": len(rows) * rows.unit,
            "length": rows.length,
            "fill": rows.fill,
            "tokens": rows.tokens,
            "trained_tokens": _trained(rows),
            "steps_per_pass": math.ceil(len(rows) * rows.unit / run.training.global_batch),
        }
    if "json" in values:
        return json.dumps({**totals, "shown": explanation.json()}, indent=2)
    color = "color" in values or sys.stdout.isatty()
    return f"{_described(totals, run)}\n\n{explanation.render(color=color)}"


def _trained(rows: Rows) -> int:
    """Returns the number of targets that count in all rows; 0 for rows without targets."""
    if "mask" not in rows.batch(np.arange(1)):
        return 0
    blocks = (np.arange(i, min(i + _BLOCK, len(rows))) for i in range(0, len(rows), _BLOCK))
    return sum(int((rows.batch(block)["mask"] > 0).sum()) for block in blocks)


def _described(totals: Mapping[str, Any], run: FromRecords) -> str:
    tokens = f"{totals['tokens']:,} tokens"
    if trained := totals["trained_tokens"]:
        tokens += f", {trained:,} trained ({trained / totals['tokens']:.1%})"
    return "\n".join(
        (
            f"{totals['records']:,} records to train on, {totals['held_out']:,} held out, "
            f"{totals['dropped']:,} without anything to train on, {totals['corrupt']:,} damaged",
            f"{totals['rows']:,} rows of {totals['length']:,} slots, {totals['fill']:.1%} filled; "
            f"the longest record has {totals['longest_tokens']:,} tokens",
            tokens,
            f"one pass: {totals['steps_per_pass']:,} steps of {run.training.global_batch} rows",
        )
    )

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""One launch of a run: its settings, its record, and its training. Every process calls it."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail_stack import (
    launch_settings,
    launches,
    processes,
    rewinding,
    settings,
    training,
)

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from dovetail_stack.supervision import Supervision


def launch(
    values: dict[str, Any],
    out: Path,
    *,
    mesh: "Mesh",
    command: Sequence[str],
    changes: Mapping[str, Sequence[Any]] | None = None,
    supervision: "Supervision | None" = None,
) -> bool:
    """Trains a run to its end, or resumes it, and records the launch.

    Args:
        values: Parsed options by name.
        out: Directory of the run.
        mesh: Devices.
        command: Arguments of the command `dovetail`.
        changes: Settings that were changed before, for the record.
        supervision: See `training.execute`. The lock of the run is then held already.

    Returns:
        False if it was stopped early. Its state is then saved.
    """
    run = launch_settings.agreed(values, out, mesh)
    record = launches.Record()
    with contextlib.ExitStack() as stack:
        options = {"command": command, "seeds": {"seed": run.training.seed}, "mesh": mesh}
        if supervision is not None:
            options["generation"] = supervision.context.generation
        entered = []

        def begin() -> None:
            before = settings.load(out)
            changed = {**settings.changes(before, run), **(changes or {})}
            if run.rewind is not None:
                changed |= rewinding.changes(before, run, rewinding.checkpoints(out))
            entered.append(stack.enter_context(launches.recorded(out, changes=changed, **options)))

        processes.on_first(begin)
        record = entered[0] if entered else record
        made = rewinding.completed(run, out) if run.rewind is not None else run
        mode = values.get("resume", "exact")
        record.finished = training.execute(
            made, out, mesh=mesh, resume=mode, supervision=supervision
        )
    return record.finished

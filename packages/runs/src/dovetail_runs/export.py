# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Copies of a run for other programs: event files of TensorBoard, offline runs of W&B."""

from pathlib import Path
from typing import Any, Literal, get_args

from dovetail_runs.metrics.metrics import Curve, Metrics
from dovetail_runs.run import Run
from dovetail_runs.settings import flat, short

Format = Literal["tensorboard", "wandb-offline"]
FORMATS: tuple[Format, ...] = get_args(Format)


def export(run: Run | str | Path, out: str | Path, *, to: Format, project: str = "runs") -> Path:
    """Writes the scalars of a run for another program, with their steps and times.

    Steps that a later launch repeated have its values alone. Damaged lines are left out. Needs the
    extra `tensorboard` or `wandb`.

    Args:
        run: The run, or its folder.
        out: Directory for "tensorboard", which must not have event files. Directory of offline runs
            for "wandb-offline": upload the new one with `wandb sync`.
        to: The format.
        project: Project of W&B.

    Returns:
        The directory that was written.

    Raises:
        ValueError: The folder is no run, has no metrics, or `to` or `out` does not fit.
        ImportError: The extra is missing.

    Example:

        >>> from dovetail_runs import Run, export
        >>> with Run("runs/first").launch({"rate": 0.1}) as launch:
        ...     launch.write(0, {"loss": 2.5})
        >>> export("runs/first", "logs/first", to="tensorboard").name
        'first'
    """
    run = run if isinstance(run, Run) else Run(run)
    if to not in FORMATS:
        raise ValueError(
            f"to must be one of {', '.join(FORMATS)}, got to={to!r}: write {FORMATS[0]!r}"
        )
    (settings,) = short([flat(run.settings)])
    if not (metrics := run.metrics).names:
        raise ValueError(
            f"an export needs metrics, got none in {str(run.path)!r}: wait for the first line"
        )
    if to == "tensorboard":
        return _to_tensorboard(metrics, settings, Path(out))
    return _to_wandb(run, settings, Path(out), project)


def _to_tensorboard(metrics: Metrics, settings: dict[str, Any], out: Path) -> Path:
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise _missing("tensorboardX", "tensorboard", error) from error
    if any(out.glob("events.out.tfevents.*")):
        raise ValueError(
            f"out must be a directory without event files, got {str(out)!r} with some: they would "
            "be drawn as the same run. Remove them, or name another directory"
        )
    with SummaryWriter(logdir=str(out)) as writer:
        rows = [f"| {name} | {value} |" for name, value in settings.items()]
        writer.add_text("settings", "\n".join(["| | |", "|---|---|", *rows]), 0)
        for name in metrics.names:
            curve = metrics.curve(name)
            for step, value, time_s in _points(curve):
                writer.add_scalar(name, value, step, walltime=time_s)
    return out


def _to_wandb(run: Run, settings: dict[str, Any], out: Path, project: str) -> Path:
    try:
        import wandb
    except ImportError as error:
        raise _missing("wandb", "wandb", error) from error
    out.mkdir(parents=True, exist_ok=True)  # else W&B takes a temporary one
    written = wandb.init(
        project=project,
        name=run.path.resolve().name,
        config=settings,
        tags=run.tags,
        notes="\n".join(note.text for note in run.notes),
        dir=str(out),
        mode="offline",
        settings=wandb.Settings(silent=True, console="off"),
    )
    rows: dict[int, dict[str, float]] = {}
    for name in run.metrics.names:
        for step, value, time_s in _points(run.metrics.curve(name)):
            row = rows.setdefault(step, {})
            row[name] = value
            row["_timestamp"] = max(time_s, row.get("_timestamp", 0.0))
    for step in sorted(rows):
        written.log(rows[step], step=step)
    directory = Path(written.dir).parent
    written.finish()
    return directory


def _points(curve: Curve) -> "zip[tuple[int, float, float]]":
    return zip(curve.steps.tolist(), curve.values.tolist(), curve.times_s.tolist(), strict=True)


def _missing(package: str, extra: str, error: ImportError) -> ImportError:
    return ImportError(
        f"an export needs the package {package}, which cannot be imported ({error}): "
        f"pip install 'dovetail-runs[{extra}]'"
    )

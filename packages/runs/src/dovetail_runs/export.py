# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Copies of a run for other programs: event files of TensorBoard, offline runs of W&B."""

import html
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from dovetail_runs.metrics.metrics import Curve
from dovetail_runs.record.media import Histogram, Image, Medium, Text
from dovetail_runs.run import Run
from dovetail_runs.settings import flat, short

Format = Literal["tensorboard", "wandb-offline"]
FORMATS: tuple[Format, ...] = get_args(Format)


def export(run: Run | str | Path, out: str | Path, *, to: Format, project: str = "runs") -> Path:
    """Writes the scalars and media of a run for another program, with their steps and times.

    Steps that a later launch repeated have its values alone. Damaged lines are left out. Needs the
    extra `tensorboard` or `wandb`, and `images` for images. W&B has a medium as "text/NAME",
    "image/NAME" or "histogram/NAME".

    Args:
        run: The run, or its folder.
        out: Directory for "tensorboard", which must not have event files. Directory of offline runs
            for "wandb-offline": upload the new one with `wandb sync`.
        to: The format.
        project: Project of W&B.

    Returns:
        The directory that was written.

    Raises:
        ValueError: The folder is no run, has nothing to copy, or `to` or `out` does not fit.
        FileNotFoundError: The file of an image is missing. Nothing is written.
        ImportError: An extra is missing.

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
    if not (run.metrics.names or run.media):
        raise ValueError(
            f"an export needs metrics or media, got none in {str(run.path)!r}: wait for the first "
            "line"
        )
    _check_images([medium for medium in run.media if isinstance(medium, Image)])
    if to == "tensorboard":
        return _to_tensorboard(run, settings, Path(out))
    return _to_wandb(run, settings, Path(out), project)


def _check_images(images: Sequence[Image]) -> None:
    """Raises an error unless the images can be read, before anything is written."""
    if images:
        try:
            importlib.import_module("PIL.Image")
        except ImportError as error:
            raise _missing("pillow", "images", error) from error
    for image in images:
        if not image.file.is_file():
            raise FileNotFoundError(
                f"an image must have its file, got {image.name!r} of step {image.step} without "
                f"{str(image.file)!r}: copy the whole folder of the run"
            )


def _to_tensorboard(run: Run, settings: dict[str, Any], out: Path) -> Path:
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
        for name in run.metrics.names:
            for step, value, time_s in _points(run.metrics.curve(name)):
                writer.add_scalar(name, value, step, walltime=time_s)
        for medium in run.media:
            _add_medium(writer, medium)
    return out


def _add_medium(writer: Any, medium: Medium) -> None:
    place: dict[str, Any] = {"global_step": medium.step, "walltime": medium.time_s}
    if isinstance(medium, Text):  # indented, so that Markdown keeps its lines
        writer.add_text(medium.name, "    " + medium.text.replace("\n", "\n    "), **place)
    elif isinstance(medium, Image):
        import PIL.Image

        with PIL.Image.open(medium.file) as opened:
            pixels = np.asarray(opened)
        writer.add_image(medium.name, pixels, dataformats="HWC"[: pixels.ndim], **place)
    elif isinstance(medium, Histogram):
        counts, edges = medium.counts, medium.edges
        middles = (edges[:-1] + edges[1:]) / 2  # the values themselves are not kept
        sums = (edges[0], edges[-1], counts.sum(), counts @ middles, counts @ middles**2)
        limits, numbers = edges[1:].tolist(), counts.tolist()
        writer.add_histogram_raw(medium.name, *sums, limits, numbers, **place)


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
    points = [(n, *point) for n in run.metrics.names for point in _points(run.metrics.curve(n))]
    for medium in run.media:
        name = f"{type(medium).__name__.lower()}/{medium.name}"
        points.append((name, medium.step, _of_wandb(wandb, medium), medium.time_s))
    rows: dict[int, dict[str, Any]] = {}
    for name, step, value, time_s in points:
        row = rows.setdefault(step, {})
        row[name] = value
        row["_timestamp"] = max(time_s, row.get("_timestamp", 0.0))
    for step in sorted(rows):
        written.log(rows[step], step=step)
    directory = Path(written.dir).parent
    written.finish()
    return directory


def _of_wandb(wandb: Any, medium: Medium) -> Any:
    """Returns the value of W&B for a medium."""
    if isinstance(medium, Text):
        return wandb.Html(
            f"<pre>{html.escape(medium.text)}</pre>", inject=False, data_is_not_path=True
        )
    if isinstance(medium, Histogram):
        return wandb.Histogram(np_histogram=(medium.counts, medium.edges))
    return wandb.Image(str(medium.file)) if isinstance(medium, Image) else None


def _points(curve: Curve) -> "zip[tuple[int, float, float]]":
    return zip(curve.steps.tolist(), curve.values.tolist(), curve.times_s.tolist(), strict=True)


def _missing(package: str, extra: str, error: ImportError) -> ImportError:
    return ImportError(
        f"an export needs the package {package}, which cannot be imported ({error}): "
        f"pip install 'dovetail-runs[{extra}]'"
    )

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Scalars for Weights & Biases."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax

from dovetail_train import _elsewhere

_log = logging.getLogger(__name__)

_MODES = ("online", "offline", "disabled")


@_elsewhere.call
class Wandb:
    """Logs to the W&B run `id` of `project`, new or resumed. Needs the extra `wandb`.

    Scalars appear under the trainer's steps; the part of a name before "/" groups them. NaN and
    infinity are logged as such.

    W&B accepts no step before its last one. A resumed trainer repeats some steps with the same
    bits: these are left out and counted in `repeated_writes`. The current step is sent when the
    next begins, or at `close`. Of several processes, process 0 alone joins the run.

    Args:
        project: W&B project.
        id: Unique text of the run. A process with the same id continues the run.
        name: Display name.
        config: Configuration to show.
        directory: Directory of local files.
        mode: "online", "offline" or "disabled". "offline" keeps a directory per process under
            `directory`, for `wandb sync`. Default: the variable WANDB_MODE, else "online".

    Raises:
        ModuleNotFoundError: The extra is not installed.
        ValueError: `mode` is another text.
    """

    def __init__(
        self,
        *,
        project: str,
        id: str,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
        directory: str | Path = ".",
        mode: Literal["online", "offline", "disabled"] | None = None,
    ) -> None:
        if mode not in (None, *_MODES):
            raise ValueError(
                f"mode must be one of {', '.join(_MODES)}, got mode={mode!r}; leave it out for "
                f"that of WANDB_MODE, or write mode='offline'"
            )
        try:
            import wandb  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "Wandb needs wandb, got no module of that name; "
                "type: pip install dovetail-train[wandb]"
            ) from error
        Path(directory).mkdir(parents=True, exist_ok=True)  # else W&B takes a temporary one
        # W&B reads the environment once in a process, and this at each run.
        asked: Any = mode or os.environ.get("WANDB_MODE") or None
        self._run: Any = None
        self._next = 0
        if not (jax.distributed.is_initialized() and jax.process_index()):
            self._run = wandb.init(
                project=project,
                id=id,
                name=name,
                config=None if config is None else dict(config),
                dir=str(directory),
                mode=asked,
                resume="allow",
            )
            self._next = int(self._run.step)
        self.repeated_writes = 0

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        if step < self._next:
            if not self.repeated_writes:
                _log.info("W&B has steps up to %d already; they are not sent again", self._next - 1)
            self.repeated_writes += 1
            return
        self._next = step  # the same step again adds to it
        self._run.log(dict(scalars), step=step)

    def close(self) -> None:
        """Sends what is left and ends the run. W&B's service ends with the process."""
        if self._run is not None:
            self._run.finish()

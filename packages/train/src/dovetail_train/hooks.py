# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""What the training loop calls every so many steps."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from dovetail_train.state import State

if TYPE_CHECKING:
    from dovetail_train.trainer import Trainer


@runtime_checkable
class Hook(Protocol):
    """Called after every `every`-th update, with the number of updates made; returns scalars.

    The scalars go to the sinks under that number. The state must not be kept: the next step
    donates it. A hook that also has get_state and set_state (JSON) is saved with the run.
    """

    every: int

    def __call__(self, trainer: "Trainer", state: State, step: int) -> Mapping[str, float]: ...


@runtime_checkable
class Closable(Protocol):
    """A hook or a sink that holds something open: `fit` closes it, however a run ends.

    It must be usable again afterwards.
    """

    def close(self) -> None: ...

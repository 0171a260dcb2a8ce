# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Stores of runs: one commit per step of several named items."""

import inspect
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax

from dovetail_train._keys import key_data, typed


@runtime_checkable
class Stateful(Protocol):
    """An object with a position that can be saved as JSON and restored."""

    def get_state(self) -> Any: ...
    def set_state(self, state: Any) -> None: ...


@runtime_checkable
class Store(Protocol):
    """A checkpoint manager. Items are pytrees of arrays, or objects with get_state and set_state.

    - `save` copies all it needs before it returns (arrays may then be donated), and commits all
      items or none, perhaps later.
    - A `save` with an argument `metrics` receives the finite scalars of that step's hooks by name,
      so the store may keep the best step.
    - `restore` fills the targets (pytrees of ShapeDtypeStructs with shardings, or objects, by
      set_state) from the newest good step. It returns (step, items), or None if nothing was saved.
    - `wait` returns when all saves are durable, and raises their errors.

    `fit` asks for the item `description` alone before it restores all items; see `PeekStore`.
    """

    def save(self, step: int, **items: Any) -> None:
        """Saves all items as step `step`, or none."""
        ...

    def restore(self, **targets: Any) -> tuple[int, dict[str, Any]] | None:
        """Returns the newest good step and its items, or None if nothing was saved."""
        ...

    def wait(self) -> None:
        """Returns when all saves are durable. Raises their errors."""
        ...


@runtime_checkable
class PeekStore(Protocol):
    """A store that reads the state of one object without the arrays of the step.

    `fit` compares descriptions of runs before arrays are read. Without `peek` it asks
    `restore(description=...)` for that item alone.
    """

    def peek(self, name: str) -> tuple[int, Any] | None:
        """Returns the newest step and the state of its object `name`, or None for the state if the
        step lacks it. None if nothing was saved.
        """
        ...


def takes_metrics(store: Store) -> bool:
    """Whether the store's `save` declares `metrics`."""
    return "metrics" in inspect.signature(store.save).parameters


class OrbaxStore:
    """A Store on `orbax.checkpoint.CheckpointManager`. Needs the extra `orbax`.

    Saves are asynchronous, and a step appears by one rename. Restores the newest committed step,
    without verification.

    Args:
        directory: Directory of the run.
        keep: Number of steps to keep.

    Raises:
        ValueError: Orbax would read `directory` as a pattern, and lose the arrays.
    """

    def __init__(self, directory: str | Path, *, keep: int = 3) -> None:
        try:
            import orbax.checkpoint as ocp
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "OrbaxStore needs orbax-checkpoint, got no module of that name; "
                "type: pip install dovetail-train[orbax]"
            ) from error
        path = Path(directory).absolute()
        if any(character in "*?[" for character in str(path)):
            raise ValueError(
                "the path of a run must have none of the characters *, ? and [, which Orbax reads "
                f"as a pattern, got {str(path)!r}; rename the directory"
            )
        self._ocp = ocp
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True)
        self._manager = ocp.CheckpointManager(path, options=options)

    def save(self, step: int, **items: Any) -> None:
        args = self._ocp.args
        self._manager.save(
            step,
            args=args.Composite(
                **{
                    name: args.JsonSave({"state": item.get_state()})
                    if isinstance(item, Stateful)
                    else args.StandardSave(jax.tree.map(key_data, item))
                    for name, item in items.items()
                }
            ),
        )

    def restore(self, **targets: Any) -> tuple[int, dict[str, Any]] | None:
        step = self._manager.latest_step()
        if step is None:
            return None
        args = self._ocp.args
        restored = self._manager.restore(
            step,
            args=args.Composite(
                **{
                    name: args.JsonRestore()
                    if isinstance(target, Stateful)
                    else args.StandardRestore(jax.tree.map(key_data, target))
                    for name, target in targets.items()
                }
            ),
        )
        items = {}
        for name, target in targets.items():
            if isinstance(target, Stateful):
                target.set_state(restored[name]["state"])
                items[name] = target
            else:
                items[name] = jax.tree.map(typed, restored[name], target)
        return step, items

    def peek(self, name: str) -> tuple[int, Any] | None:
        step = self._manager.latest_step()
        if step is None:
            return None
        if not (self._manager.directory / str(step) / name).exists():
            return step, None
        args = self._ocp.args
        restored = self._manager.restore(step, args=args.Composite(**{name: args.JsonRestore()}))
        return step, restored[name]["state"]

    def wait(self) -> None:
        self._manager.wait_until_finished()

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Resuming of a run: its description is compared first, then the arrays are read, once."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax

from dovetail_train.mesh.processes import first, gather
from dovetail_train.resume.contract import (
    Difference,
    between,
    compare,
    compare_rows,
    description,
    readable,
    refusal,
)
from dovetail_train.resume.conversion import (
    HYPERPARAMS,
    Converted,
    convert,
    flat,
    plain,
    target_of,
)
from dovetail_train.step.options import Options
from dovetail_train.step.state import Definition, State, train_item
from dovetail_train.store import PeekStore, Stateful, Store

_log = logging.getLogger(__name__)
Mode = Literal["exact", "convert"]
ITEM = "description"
_SHOWN = 3  # differences between processes; there may be one in each of hundreds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beginning:
    """The start of a run: restored into `target` by a store, or made by `build()`.

    Attributes:
        params: The model's own arrays, for the message if step 0 is not finite.
        target: Shapes and shardings of the state.
        build: Returns a fresh state.
        definition: The split model.
        options: Options of the trainer.
    """

    params: Any
    target: State
    build: Callable[[], State]
    definition: Definition
    options: Options


class Description:
    """The item `description` of a checkpoint. It holds no arrays.

    That of process 0 is saved and compared: a function may hold a value of its process, such as its
    rank, and the run is to resume on any number of them.

    Attributes:
        saved: The restored description, or None.
    """

    def __init__(self, begin: Beginning) -> None:
        self._make = functools.partial(description, begin.options, begin.definition, begin.target)
        self.saved: dict[str, Any] | None = None
        self._rows: tuple[int, int] | None = None  # of the smallest and the largest batch

    @functools.cached_property
    def present(self) -> dict[str, Any]:
        """The description of this run; after `agree`, of its process 0."""
        return self._make()

    def agree(self) -> None:
        """Takes the description of process 0, and logs functions that differ. A collective.

        Raises:
            ValueError: Settings or arrays differ between the processes.
        """
        if jax.process_count() == 1:
            return
        own, self.present = self.present, first(self.present)
        every = gather([list(texts) for texts in between(self.present, own)])
        lines = [
            (is_function, f"{name}={after} in process {i} where process 0 has {before}")
            for i, differences in enumerate(every)
            for is_function, name, before, after in differences
        ]
        if wrong := [line for is_function, line in lines if not is_function]:
            raise ValueError(
                f"all processes of a run must train the same program, got {_few(wrong)}; pass the "
                f"same settings and model to the Trainer of every process"
            )
        if lines and jax.process_index() == 0:
            _log.warning(
                "all processes of a run should be given the same functions, got %s; checkpoints "
                "describe those of process 0; if the step reads such a value, pass the same one "
                "everywhere",
                _few([line for _, line in lines]),
            )

    def see(self, step: int, rows: int) -> None:
        """Takes the rows of a batch. Those of the first are compared with the saved run's.

        Args:
            step: Number of updates before it.
            rows: Rows of all processes.
        """
        if self._rows is None and self.saved and (saved := readable(self.saved)):
            _log_changes(step, compare_rows(saved, rows))
        fewest, most = self._rows or (rows, rows)
        self._rows = min(fewest, rows), max(most, rows)

    def get_state(self) -> dict[str, Any]:
        return self.present | {"rows": self._rows and list(self._rows)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.saved = state


def restore(
    begin: Beginning,
    store: Store,
    item: Description,
    *,
    mode: Mode,
    steps: int,
    data: Stateful,
    hooks: Stateful,
) -> State | None:
    """Returns the newest state of `store`, or None if nothing was saved.

    Args:
        begin: Start of the run.
        store: The store.
        item: Description of this run.
        mode: See `Trainer.fit`.
        steps: See `Trainer.fit`.
        data: Receives the saved position of the data.
        hooks: Receives the saved state of hooks and clock.

    Raises:
        ValueError: The saved run differs in an entry of the contract that this mode refuses.
    """
    item.agree()
    newest, is_readable = _peek(store, item)
    if newest is not None:
        _check_steps(newest[0], steps)
    saved = None if newest is None else readable(newest[1])
    changes = _accepted(item, saved, mode)
    converts = _converts(changes)
    train = train_item(begin.target)
    if saved is not None and converts:
        train = target_of(saved["state"], begin.target)
    targets = {"params": begin.target.params, "train": train, "data": data, "hooks": hooks}
    restored = _restored(store, targets, item, has_item=saved is not None or not is_readable)
    if restored is None:
        return None
    params, train = restored[1]["params"], restored[1]["train"]
    if item.saved != saved:  # the newest step was damaged, or the store reads whole steps alone
        saved = readable(item.saved)
        changes = _accepted(item, saved, mode)
        converts = converts or _converts(changes)
    state, result = _state(begin, params, train, changes, converts=converts)
    step = int(state.step)
    _check_steps(step, steps)
    _report(step, steps, changes, result=result, described=saved is not None)
    return state


def _state(
    begin: Beginning, params: Any, train: Any, changes: Sequence[Difference], *, converts: bool
) -> tuple[State, Converted | None]:
    rates = {d.name.rpartition(".")[2] for d in changes if d.rule.entry == "optimizer"}
    held = {name for name in rates if _is_held(begin.target.opt, name)}
    if not converts and not held:
        return State(params=params, **train), None
    made = convert(train, params, definition=begin.definition, target=begin.target, renewed=held)
    return made.state, made


def _is_held(opt: Any, name: str) -> bool:
    """Tests whether the optimizer's state has a hyperparameter of this name."""
    return any(f".{path}".endswith(f".{HYPERPARAMS}.{name}") for path in flat(plain(opt)))


def _peek(store: Store, item: Description) -> tuple[tuple[int, dict[str, Any] | None] | None, bool]:
    """Returns the newest step and its description without its arrays, and whether that works."""
    if isinstance(store, PeekStore):
        return store.peek(ITEM), True
    try:
        restored = store.restore(**{ITEM: item})
    except Exception as error:  # of a store without this item, or one that reads whole steps alone
        _log.debug("the store cannot read its item %r alone: %r", ITEM, error)
        return None, False
    saved, item.saved = item.saved, None
    return (None if restored is None else (restored[0], saved)), True


def _restored(
    store: Store, targets: dict[str, Any], item: Description, *, has_item: bool
) -> tuple[int, dict[str, Any]] | None:
    """Returns the restored items, with the description if the step has it."""
    if not has_item:
        return store.restore(**targets)
    try:
        return store.restore(**targets, **{ITEM: item})
    except Exception:
        if isinstance(store, PeekStore) or item.saved is not None:
            raise
        return store.restore(**targets)  # of an earlier version; any other error comes again


def _accepted(item: Description, saved: dict[str, Any] | None, mode: Mode) -> list[Difference]:
    """Returns the differences, if the mode allows all of them."""
    if saved is None:
        return []
    differences = compare(saved, item.present)
    for difference in differences:
        if difference.rule.verdict == "refused":
            raise ValueError(refusal(difference))
    if mode == "exact" and _converts(differences):
        changed = [d for d in differences if d.rule.verdict == "converted"]
        raise ValueError(
            f"the state of a run must have the arrays that were saved, got "
            f'{"; ".join(map(str, changed))}; write fit(..., resume="convert") to keep the arrays '
            f"that fit and to make the others, or pass the saved settings"
        )
    return differences


def _few(lines: Sequence[str]) -> str:
    more = f"; and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "; ".join(lines[:_SHOWN]) + more


def _converts(differences: Sequence[Difference]) -> bool:
    return any(difference.rule.verdict == "converted" for difference in differences)


def _check_steps(step: int, steps: int) -> None:
    if steps < step:
        raise ValueError(
            f"steps must be at least the {step} updates that the stored run has made, got "
            f"steps={steps}; pass steps={step} or more, or another store"
        )


def _report(
    step: int,
    steps: int,
    changes: Sequence[Difference],
    *,
    result: Converted | None,
    described: bool,
) -> None:
    _log.info("continuing from step %d", step)
    if not described:
        _log.warning(
            "step %d has no description that can be read (an earlier version saved it, or the "
            "store does not read items alone): no setting was compared",
            step,
        )
    _log_changes(step, changes)
    if result is not None:
        converted = [str(change) for change in changes if change.rule.verdict == "converted"]
        changed = "; ".join(converted) or "hyperparameters in it have new values"
        _log.warning("the state of step %d was converted (%s): %s", step, changed, result)
    if step == steps:
        _log.info("the run has made its steps=%d updates: nothing is left to train", steps)


def _log_changes(step: int, changes: Sequence[Difference]) -> None:
    if logged := [str(change) for change in changes if change.rule.verdict == "logged"]:
        _log.warning("from step %d on the run has other settings: %s", step, "; ".join(logged))

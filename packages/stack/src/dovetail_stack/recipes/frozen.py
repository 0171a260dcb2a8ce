# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints without frozen parameters.

A run with adapters of 1 % of the parameters, or with a teacher, would write the other weights
again with every checkpoint, though a directory already holds them. A checkpoint stores a digest
instead. A resumed run compares it with the weights read from the directory, because other weights
would make another run.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import UInt32

from dovetail_checkpoint import Store, digest


class WithoutFrozen:
    """A store around another store. It replaces `frozen` in the item `train` by a digest.

    `frozen` is the tree of that name in the trainer's state. `restore` returns it; it is held until
    then.
    """

    def __init__(self, store: Store, frozen: Any) -> None:
        self._store, self._frozen = store, frozen
        self._digest: np.ndarray | None = None

    @classmethod
    def of(cls, model: nnx.Module, store: Store, *, trainable: Any) -> "Store | WithoutFrozen":
        """Wraps `store` for `model`. Returns `store` itself if no parameter is frozen.

        Args:
            model: The module to train.
            store: Where checkpoints go.
            trainable: The trainer's filter.
        """
        _, _, frozen, _ = nnx.split(model, trainable, nnx.Param, ...)
        tree = nnx.to_pure_dict(frozen)
        return cls(store, tree) if jax.tree.leaves(tree) else store

    def save(
        self, step: int, *, metrics: Mapping[str, float | int] | None = None, **items: Any
    ) -> None:
        """Saves the items, with a digest in place of the frozen parameters.

        Args:
            step: Number of the step.
            metrics: Scalars of the hooks of that step.
            items: As the trainer passes them.
        """
        train = dict(items.pop("train"))
        frozen = train.pop("frozen")
        if self._digest is None:
            self._digest = _stacked(digest(frozen))
        train["frozen_digest"] = self._digest
        self._store.save(step, metrics=metrics, train=train, **items)

    def restore(self, **targets: Any) -> tuple[int, dict[str, Any]] | None:
        """Restores the items, with the frozen parameters in place of their digest.

        Raises ValueError if they differ from those at the start of the run.
        """
        frozen, self._frozen = self._frozen, None  # the trainer's copy is to be the only one
        train = dict(targets.pop("train"))
        like = train.pop("frozen")
        size = len(jax.tree.leaves(like))
        train["frozen_digest"] = jax.ShapeDtypeStruct(
            (size, 2), jnp.uint32, sharding=train["step"].sharding
        )
        saved_step = self._store.restore(train=train, **targets)
        if saved_step is None:
            return None
        step, items = saved_step
        restored = dict(items["train"])
        saved = np.asarray(restored.pop("frozen_digest"))
        placed = jax.tree.map(
            lambda x, t: jax.device_put(x, t.sharding, may_alias=False), frozen, like
        )
        self._check(saved, placed, step)
        return step, {**items, "train": {**restored, "frozen": placed}}

    def peek(self, name: str) -> tuple[int, dict[str, Any] | None] | None:
        """Reads the state of one object in the newest step, and no array."""
        return self._store.peek(name)

    def _check(self, saved: np.ndarray, frozen: Any, step: int) -> None:
        digests = digest(frozen)
        self._digest = _stacked(digests)
        differing = np.flatnonzero((saved != self._digest).any(axis=1))
        if differing.size:
            names = list(digests)
            raise ValueError(
                f"parameters that are not trained must be those that the run began with, got "
                f"others in {differing.size} of {len(names)} since step {step}, "
                f"first {names[differing[0]]}: "
                f"put back the directory that they were read from, or start a new run"
            )

    def wait(self) -> None:
        """Waits until all saves are on the disk."""
        self._store.wait()


def _stacked(digests: dict[str, UInt32[jax.Array, "2"]]) -> UInt32[np.ndarray, "leaves 2"]:
    """Returns the digests as one array, a single leaf of the checkpoint."""
    return np.stack(jax.device_get(list(digests.values())))

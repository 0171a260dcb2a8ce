# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints without the parameters that no step changes.

A run with adapters of 1 % of the parameters, or one with a teacher, would write the other weights
again with every checkpoint, though a directory holds them already. Their place in a checkpoint
takes a digest, and what a resumed run read from that directory is held against it: with other
weights it would be another run.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import UInt32

from dovetail_checkpoint import digest
from dovetail_train import Store


class WithoutFrozen:
    """A store, in front of another, that leaves out `frozen` of the item `train`.

    frozen: the tree of that name in the trainer's state, given back by `restore`; held until then.
    """

    def __init__(self, store: Store, frozen: Any) -> None:
        self._store, self._frozen = store, frozen
        self._digest: np.ndarray | None = None

    @classmethod
    def of(cls, model: nnx.Module, store: Store, *, trainable: Any) -> Store:
        """This store for that model; `store` itself if every parameter is trained."""
        _, _, frozen, _ = nnx.split(model, trainable, nnx.Param, ...)
        tree = nnx.to_pure_dict(frozen)
        return cls(store, tree) if jax.tree.leaves(tree) else store

    def save(self, step: int, **items: Any) -> None:
        """Saves the items, a digest in the place of what is frozen."""
        train = dict(items.pop("train"))
        frozen = train.pop("frozen")
        if self._digest is None:
            self._digest = _stacked(digest(frozen))
        self._store.save(step, train={**train, "frozen_digest": self._digest}, **items)

    def restore(self, **targets: Any) -> tuple[int, dict[str, Any]] | None:
        """What the other store restores, with the frozen parameters where they are wanted.

        Raises ValueError if they are not those of the checkpoint.
        """
        frozen, self._frozen = self._frozen, None  # the trainer's copy is to be the only one
        train = dict(targets.pop("train"))
        like = train.pop("frozen")
        size = len(jax.tree.leaves(like))
        train["frozen_digest"] = jax.ShapeDtypeStruct(
            (size, 2), jnp.uint32, sharding=train["step"].sharding
        )
        found = self._store.restore(train=train, **targets)
        if found is None:
            return None
        step, items = found
        restored = dict(items["train"])
        saved = np.asarray(restored.pop("frozen_digest"))
        placed = jax.tree.map(
            lambda x, t: jax.device_put(x, t.sharding, may_alias=False), frozen, like
        )
        self._check(saved, placed, step)
        return step, {**items, "train": {**restored, "frozen": placed}}

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
        """Returns when what was begun is durable."""
        self._store.wait()


def _stacked(digests: dict[str, UInt32[jax.Array, "2"]]) -> UInt32[np.ndarray, "leaves 2"]:
    """The digests as one array, which a checkpoint holds as one leaf."""
    return np.stack(jax.device_get(list(digests.values())))

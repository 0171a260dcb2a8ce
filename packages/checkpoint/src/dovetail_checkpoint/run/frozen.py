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
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import UInt32

from dovetail_checkpoint.proof.digest import digest
from dovetail_checkpoint.run.store import Store


class WithoutFrozen:
    """A store around another store. A digest replaces the frozen parameters in one item.

    The item is a dictionary with the frozen parameters as its entry `name`. Of its checkpoints,
    Orbax and `load` read an array `{name}_digest`, u32[leaves, 2], in their place.

    Args:
        store: Where checkpoints go. Its owner closes it.
        frozen: Pytree of the frozen parameters, as read again from their source at each start of
            the run. It is held until `restore`, which moves it to the devices.
        item: Name of the item.
        name: Name of its entry.

    Example:

        >>> import jax.numpy as jnp
        >>> state = {"base": jnp.arange(8.0), "lora": jnp.ones(2)}
        >>> with Store("adapters") as store:
        ...     WithoutFrozen(store, state["base"], item="model", name="base").save(1, model=state)
        >>> resumed = WithoutFrozen(store, jnp.arange(8.0), item="model", name="base")
        >>> resumed.restore(model=state)[1]["model"]["base"].shape
        (8,)
    """

    def __init__(self, store: Store, frozen: Any, *, item: str, name: str) -> None:
        self._store, self._frozen = store, frozen
        self._item, self._name = item, name
        self._digest: np.ndarray | None = None

    def save(self, step: int, *, metrics: Mapping[str, Any] | None = None, **items: Any) -> None:
        """Saves the items, with a digest in place of the frozen parameters; see `Store.save`.

        Args:
            step: Number of the step.
            metrics: Numbers by name.
            items: The items, with the one of the frozen parameters.
        """
        content = dict(items[self._item])
        frozen = content.pop(self._name)
        if self._digest is None:
            self._digest = _stacked(digest(frozen))
        content[f"{self._name}_digest"] = self._digest
        self._store.save(step, metrics=metrics, **{**items, self._item: content})

    def restore(self, **targets: Any) -> tuple[int, dict[str, Any]] | None:
        """Restores the items, with the frozen parameters in place of their digest.

        Call it at most once: the frozen parameters are then the caller's. See `Store.restore`.

        Raises:
            ValueError: They differ from those at the start of the run.
        """
        frozen, self._frozen = self._frozen, None  # the caller's copy is to be the only one
        target = dict(targets[self._item])
        like = target.pop(self._name)
        target[f"{self._name}_digest"] = _digest_like(like)
        saved_step = self._store.restore(**{**targets, self._item: target})
        if saved_step is None:
            return None
        step, items = saved_step
        restored = dict(items[self._item])
        saved = np.asarray(restored.pop(f"{self._name}_digest"))
        restored[self._name] = jax.tree.map(
            lambda x, t: jax.device_put(x, t.sharding, may_alias=False), frozen, like
        )
        self._check(saved, restored[self._name], step)
        return step, {**items, self._item: restored}

    def peek(self, name: str) -> tuple[int, dict[str, Any] | None] | None:
        """Reads the state of one object in the newest step, and no array."""
        return self._store.peek(name)

    def wait(self) -> None:
        """Waits until all saves are durable."""
        self._store.wait()

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


def _stacked(digests: dict[str, UInt32[jax.Array, "2"]]) -> UInt32[np.ndarray, "leaves 2"]:
    """Returns the digests as one array, a single leaf of the checkpoint."""
    return np.stack(jax.device_get(list(digests.values())))


def _digest_like(frozen: Any) -> jax.ShapeDtypeStruct:
    """Returns the target of the digests, whole on each device of the first leaf."""
    leaves = jax.tree.leaves(frozen)
    place = leaves[0].sharding
    if isinstance(place, NamedSharding):
        place = NamedSharding(place.mesh, PartitionSpec())
    return jax.ShapeDtypeStruct((len(leaves), 2), jnp.uint32, sharding=place)

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of a `Trainer` and of its `fit`, before any work starts."""

import sys
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh

from dovetail_train.step.options import Precision
from dovetail_train.store import Stateful

# Makes an NNX module of a callable tree of arrays, with a parameter for each float array.
_WRAPPER = """\
class Wrapped(nnx.Module):
    def __init__(self, tree):
        leaves, self.structure = jax.tree.flatten(tree)
        self.leaves = nnx.List(nnx.Param(x) if self.trained(x) else x for x in leaves)

    @staticmethod
    def trained(x):
        return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)

    def __call__(self, *args, **kwargs):
        leaves = [x[...] if isinstance(x, nnx.Param) else x for x in self.leaves]
        return jax.tree.unflatten(self.structure, leaves)(*args, **kwargs)
"""


def check_placement(mesh: Any, precision: Any) -> None:
    """Raises TypeError unless these are a mesh (or None) and a `Precision`.

    Several processes need a mesh: ValueError.
    """
    if mesh is None and jax.process_count() > 1:
        raise ValueError(
            f"several processes need a mesh over all of their devices, got mesh=None with "
            f"{jax.process_count()} processes; pass mesh=make_mesh()"
        )
    if mesh is not None and not isinstance(mesh, Mesh | AbstractMesh):
        raise TypeError(f"mesh must be a mesh of devices, got mesh={mesh!r}; pass mesh=make_mesh()")
    if not isinstance(precision, Precision):
        raise TypeError(
            f"precision must be a Precision, got precision={precision!r}; write "
            f'precision=Precision(compute="bfloat16")'
        )


def check_after_update(after_update: Any) -> None:
    """Raises TypeError unless `after_update` is a function or None."""
    if after_update is not None and not callable(after_update):
        raise TypeError(
            f"after_update must be a function of the module, got after_update={after_update!r}; "
            f"write def after_update(model), or leave it out"
        )


def check_model(model: Any) -> None:
    """Raises TypeError unless `model` is a Flax NNX module.

    The message has the code that makes one of a Linen module, or of any callable tree of arrays.
    """
    if isinstance(model, nnx.Module):
        return
    kind = type(model).__name__
    linen = sys.modules.get("flax.linen")
    if linen is not None and isinstance(model, linen.Module):
        raise TypeError(
            f"model must be a flax.nnx.Module, got the Linen module {kind}; write "
            f"nnx.bridge.ToNNX(model, rngs=nnx.Rngs(0)).lazy_init(x) with an input x of the model"
        )
    if callable(model) and any(isinstance(x, jax.Array) for x in jax.tree.leaves(model)):
        raise TypeError(
            f"model must be a flax.nnx.Module, got {kind}, a tree of arrays as those of Equinox "
            f"are; write Wrapped(model) with\n\n{_WRAPPER}"
        )
    raise TypeError(
        f"model must be a flax.nnx.Module, got {model!r}; wrap a function of parameters in a "
        f"module with nnx.Param attributes and __call__"
    )


def check_run(
    iterator: Any,
    *,
    steps: int,
    save_every: int | None,
    store: Any,
    sinks: Any,
    hooks: Any,
    resume: Any,
) -> None:
    """Raises ValueError or TypeError for an argument of `Trainer.fit` that cannot be right.

    Args:
        iterator: Iterator over the batches.
        steps: See `Trainer.fit`.
        save_every: See `Trainer.fit`.
        store: See `Trainer.fit`.
        sinks: See `Trainer.fit`.
        hooks: See `Trainer.fit`.
        resume: See `Trainer.fit`.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1 update, got steps={steps}; write steps=1000")
    if resume not in ("exact", "convert"):
        raise ValueError(
            f'resume must be "exact" or "convert", got resume={resume!r}; leave it out, or write '
            f'resume="convert" to add or drop averages, a guard or counters of an optimizer'
        )
    if save_every is not None and save_every < 1:
        raise ValueError(
            f"save_every must be at least 1 update, got save_every={save_every}; write "
            f"save_every=None to save at the end alone"
        )
    if save_every is not None and store is None:
        raise ValueError(
            f"save_every needs a store, got save_every={save_every}, store=None; "
            f'pass store=OrbaxStore("DIR") or leave save_every out'
        )
    if isinstance(store, str):
        raise TypeError(
            f"store must have save, restore and wait, got store={store!r}; pass "
            f"store=OrbaxStore({store!r}) or dovetail_checkpoint.Store({store!r})"
        )
    if store is not None and not isinstance(iterator, Stateful):
        raise ValueError(
            f"data must have get_state and set_state to be resumed from a store, got an "
            f"iterator {type(iterator).__name__}; pass such an iterator or store=None"
        )
    for sink in _each(sinks, "sinks", "Console()"):
        if not callable(getattr(sink, "write", None)):
            raise TypeError(
                f"a sink must have write(step, scalars), got {sink!r}; pass for example "
                f'sinks=[Console(), Jsonl("metrics.jsonl")]'
            )
    for hook in _each(hooks, "hooks", "Watch('**', every=100)"):
        if not callable(hook) or not isinstance(getattr(hook, "every", None), int):
            raise TypeError(
                f"a hook must have `every`, a number of updates, and a call of (trainer, state, "
                f"step), got {hook!r}; set hook.every = 100 on a function, or write a class"
            )


def _each(values: Any, name: str, example: str) -> Sequence[Any]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"{name} must be a list, got {name}={values!r}; write {name}=[{example}]")
    return values

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Conversion of a saved state to other arrays: averages, a guard, counters of an optimizer.

The saved state has the tree of another trainer, whose classes may be out of reach. Its description
says the tree as nested dicts and lists, as Orbax writes it, so every store can read it. Arrays are
then matched by name, shape and dtype; the others are made anew.
"""

import dataclasses
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dovetail_train.mesh.processes import put
from dovetail_train.step.state import Definition, State, init_averages, train_item

_ARRAY = re.compile(r"(.+)\[([\d, ]*)\]")
_KEYS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
_SHOWN = 5  # names in a line; an optimizer may have hundreds
HYPERPARAMS = "hyperparams"  # settings that `optax.inject_hyperparams` keeps in its state


@dataclasses.dataclass(frozen=True, kw_only=True)
class Converted:
    """A converted state.

    Attributes:
        state: The state.
        taken: Number of optimizer arrays that were kept.
        made: Names of arrays that were made, with their values if these are counters.
        dropped: Names of saved arrays without a place.
    """

    state: State
    taken: int
    made: list[str]
    dropped: list[str]

    def __str__(self) -> str:
        made, dropped = _few(self.made), _few(self.dropped)
        return f"taken {self.taken} arrays of the optimizer; made {made}; dropped {dropped}"


def target_of(saved: Mapping[str, Any], target: State) -> dict[str, Any]:
    """Returns the target that reads the item `train` of the saved run.

    Args:
        saved: Entry "state" of the saved description.
        target: Shapes and shardings of this run.
    """
    train = train_item(target)
    for name in ("opt", "ema", "guard"):
        if plain(getattr(target, name)) == saved[name]:
            continue
        train.pop(name, None)
        if saved[name] is not None:
            train[name] = _abstract(saved[name], target)
    return train


def convert(
    train: Mapping[str, Any],
    params: Any,
    *,
    definition: Definition,
    target: State,
    renewed: Collection[str] = (),
) -> Converted:
    """Returns the state of this run from the items of the saved one.

    Args:
        train: The restored item `train`, in the tree of the saved run.
        params: The restored parameters.
        definition: The split model, with optimizer and guard.
        target: Shapes and shardings of this run.
        renewed: Names of hyperparameters with a new value, which the saved state has too.
    """
    at, updates = definition.shardings, int(train["step"]) - int(train["skips"].total)
    saved, wanted = _by_name(train["opt"]), _by_name(target.opt)
    kept = {name: x for name, x in saved.items() if name in wanted and _is_like(x, wanted[name])}
    kept = {name: x for name, x in kept.items() if not _is_renewed(name, renewed)}
    counts = {name: x for name, x in wanted.items() if name not in kept and _is_count(name, x)}
    missing = [name for name in wanted if name not in kept]
    made = [f"opt.{name}" + (f"={updates}" if name in counts else "") for name in missing]
    fresh = _fresh_opt(definition, params, [name for name in missing if name not in counts])
    counted = {name: np.asarray(updates, x.dtype) for name, x in counts.items()}
    opt = {**fresh, **counted, **kept}
    leaves = [put(opt[name], x.sharding) for name, x in wanted.items()]
    dropped = [f"opt.{name}" for name in saved if name not in wanted]
    ema, guard = train.get("ema"), train.get("guard")
    if (at.ema is None) != (ema is None):
        (made if ema is None else dropped).append("ema")
        ema = None if at.ema is None else jax.jit(init_averages, out_shardings=at.ema)(params)
    if plain(guard) != plain(target.guard):
        dropped += ["guard"] if guard is not None else []
        guard = None if definition.guard is None else definition.guard.begin()
        made += ["guard"] if guard is not None else []
        guard = jax.tree.map(put, guard, at.guard)
    others = {name: train[name] for name in ("step", "frozen", "rest", "skips")}
    tree = jax.tree.unflatten(jax.tree.structure(target.opt), leaves)
    state = State(params=params, opt=tree, ema=ema, guard=guard, **others)
    return Converted(state=state, taken=len(kept), made=made, dropped=dropped)


def plain(tree: Any) -> Any:
    """Returns a state as nested dicts and lists, with "float32[3, 5]" for an array.

    Named tuples become dicts and empty nodes None, as in the files of Orbax.
    """
    if jax.tree_util.all_leaves([tree]):
        return f"{tree.dtype}{list(tree.shape)}"
    children = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)[0]
    if not children:
        return type(tree)() if type(tree) in (dict, list) else None
    values = [plain(value) for _, value in children]
    indexed = jax.tree_util.SequenceKey | jax.tree_util.FlattenedIndexKey
    if all(isinstance(path[0], indexed) for path, _ in children):
        return values
    names = [jax.tree_util.keystr(path, simple=True) for path, _ in children]
    return dict(zip(names, values, strict=True))


def flat(tree: Any, name: str = "") -> dict[str, str]:
    """Returns {dotted name: array} of the result of `plain`."""
    if isinstance(tree, str):
        return {name: tree}
    entries = enumerate(tree) if isinstance(tree, list) else (tree or {}).items()
    leaves: dict[str, str] = {}
    for key, child in entries:
        leaves |= flat(child, f"{name}.{key}" if name else str(key))
    return leaves


def _by_name(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _abstract(tree: Any, target: State) -> Any:
    """Returns targets for a described tree. An array lies where the parameter of its name lies."""
    params = _by_name(target.params)
    everywhere = NamedSharding(target.step.sharding.mesh, PartitionSpec())

    def placed(name: str, array: str) -> jax.ShapeDtypeStruct:
        match = _ARRAY.fullmatch(array)
        assert match is not None, "`plain` wrote it"
        dtype, shape = match[1], tuple(map(int, filter(None, match[2].split(","))))
        owners = (p for path, p in params.items() if f".{name}".endswith(f".{path}"))
        sharding = next((p.sharding for p in owners if p.shape == shape), everywhere)
        return jax.ShapeDtypeStruct(shape, _dtype(dtype), sharding=sharding)

    def rebuilt(tree: Any, name: str) -> Any:
        if isinstance(tree, list):
            return [rebuilt(child, f"{name}.{i}") for i, child in enumerate(tree)]
        if isinstance(tree, dict):
            return {key: rebuilt(child, f"{name}.{key}") for key, child in tree.items()}
        return None if tree is None else placed(name, tree)

    return rebuilt(tree, "")


def _dtype(name: str) -> Any:
    if name not in _KEYS:
        return jnp.dtype(name)
    return jax.eval_shape(lambda: jax.random.key(0, impl=_KEYS[name])).dtype


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (", ".join(names[:_SHOWN]) or "none") + more


def _is_like(x: Any, like: Any) -> bool:
    return (x.shape, x.dtype) == (like.shape, like.dtype)


def _is_renewed(name: str, renewed: Collection[str]) -> bool:
    above, _, last = name.rpartition(".")
    return last in renewed and above.rpartition(".")[2] == HYPERPARAMS


def _is_count(name: str, x: Any) -> bool:
    is_integer = jnp.issubdtype(x.dtype, jnp.integer) and not x.shape
    return is_integer and name.rpartition(".")[2] == "count"


def _fresh_opt(definition: Definition, params: Any, names: Collection[str]) -> dict[str, Any]:
    """Returns arrays of the optimizer before any update, by name."""

    def init_optimizer(params: Any) -> dict[str, Any]:
        leaves = _by_name(definition.tx.init(params))
        return {name: jnp.asarray(leaves[name]) for name in sorted(names)}

    return jax.jit(init_optimizer)(params) if names else {}

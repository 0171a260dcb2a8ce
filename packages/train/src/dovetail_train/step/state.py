# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The state of a run, as one pytree of arrays with shardings."""

import dataclasses
import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from dovetail_train._patterns import Patterns, name_of, select
from dovetail_train.mesh.axes import check_uses, retyped
from dovetail_train.mesh.mesh import ambient, sharding_by_shape
from dovetail_train.mesh.processes import put
from dovetail_train.step.guard import StepGuard, no_skips
from dovetail_train.step.optimizer import check_optimizer, transformation

# Below this many elements a parameter is replicated; the default of `fsdp_shardings`.
_MIN_SIZE = 65536

# Both are given parameters as ShapeDtypeStructs with shardings: the function that makes a
# transformation for where they lie, and the one that says where a transformation's state is to lie.
Transformation = optax.GradientTransformation | Callable[[Any], optax.GradientTransformation]
OptShardings = Callable[[optax.GradientTransformation, Any], Any]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """The state after `step` updates: nested dicts of arrays, named as in the module.

    Attributes:
        step: i32[], number of updates.
        params: Trained parameters.
        frozen: Parameters outside `trainable`; they never change.
        rest: Every other Variable of the module (batch statistics, random streams).
        opt: State of the Optax transformation.
        skips: Counts of skipped steps.
        ema: Moving average of params in float32, or None.
        guard: History of the trainer's guard, or None.
    """

    step: Any
    params: Any
    frozen: Any
    rest: Any
    opt: Any
    skips: Any
    ema: Any = None
    guard: Any = None

    def __repr__(self) -> str:
        """Returns sizes alone: the arrays would fill pages, and may be donated already."""
        trees = ((f.name, jax.tree.leaves(getattr(self, f.name))) for f in dataclasses.fields(self))
        counts = (
            f"{name}={len(leaves)} arrays of {sum(map(np.size, leaves)):,} numbers"
            for name, leaves in trees
            if leaves and name not in ("step", "skips")
        )
        return f"State({', '.join(counts)})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extras:
    """Optional state beside the module and its optimizer: averages, and a guard's history."""

    ema: bool = False
    guard: StepGuard | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Definition:
    """A module without its arrays, with the shardings of its state, its optimizer and its guard.

    Attributes:
        graphdef: Graph of the module.
        shardings: Sharding of each array.
        paths: Paths of the Variables: of trained parameters, of frozen ones, and of the others.
        kept: Names of the parameters with the metadata `keep_dtype=True`.
        tx: Optimizer.
        guard: Guard, or None.
    """

    graphdef: Any
    shardings: State
    paths: tuple[Any, ...]
    kept: frozenset[str]
    tx: optax.GradientTransformation
    guard: StepGuard | None = None

    def merge(self, params: Any, frozen: Any, rest: Any) -> nnx.Module:
        """Returns the module with these arrays.

        Args:
            params: Trained parameters.
            frozen: Frozen parameters.
            rest: Other state.
        """
        # A Variable may hold a dict. Its path tells where the Variable ends and the dict begins.
        states = (
            nnx.FlatState.from_sorted_keys_values(
                paths, [functools.reduce(operator.getitem, path, tree) for path in paths]
            )
            for tree, paths in zip((params, frozen, rest), self.paths, strict=True)
        )
        return nnx.merge(self.graphdef, *states)

    def is_like(self, other: "Definition") -> bool:
        """Tests whether the same step serves both: equal definition and shardings."""
        return self.graphdef == other.graphdef and self.shardings == other.shardings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arrays:
    """Arrays of a module, by role.

    Attributes:
        params: Trained parameters.
        frozen: Frozen parameters.
        rest: Other state.
    """

    params: Any
    frozen: Any
    rest: Any


def opt_shardings(tx: optax.GradientTransformation, params: Any) -> Any:
    """Shards optimizer leaves of a parameter's shape like the parameter; the others are replicated.

    `params` are ShapeDtypeStructs with NamedShardings on one mesh. A leaf belongs to the parameter
    whose path is part of its own: at the end, or before further names if a state holds several
    arrays per parameter, as compressed moments do. A stack of arrays of a parameter's shape, as
    L-BFGS holds, is sharded like each of them.
    """
    like = dict(jax.tree_util.tree_leaves_with_path(params))
    everywhere = NamedSharding(next(iter(like.values())).sharding.mesh, PartitionSpec())

    def place(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        parts = (
            path[start : start + size]
            for size in range(len(path), -1, -1)
            for start in range(len(path) - size, -1, -1)
        )
        owner = next((like[key] for key in parts if key in like), None)
        if owner is not None and owner.shape == leaf.shape:
            return owner.sharding
        if owner is not None and owner.shape == leaf.shape[1:] != ():
            spec = PartitionSpec(None, *owner.sharding.spec)
            return NamedSharding(owner.sharding.mesh, spec)
        return everywhere  # Adafactor's rows and columns have a shape of their own

    return jax.tree_util.tree_map_with_path(place, jax.eval_shape(tx.init, params))


def trainable_filter(trainable: Patterns | nnx.filterlib.Filter, model: nnx.Module) -> Any:
    """Returns the flax.nnx filter for `trainable`. Raises ValueError for an unmatched pattern."""
    several = trainable if isinstance(trainable, list | tuple) else [trainable]
    texts = [each for each in several if isinstance(each, str)]
    if not texts or len(texts) < len(several):
        return trainable
    named = [name_of(path) for path, _ in nnx.to_flat_state(nnx.state(model, nnx.Param))]
    selected = frozenset(select(texts, named))
    return lambda path, value: isinstance(value, nnx.Param) and name_of(path) in selected


def split(
    model: nnx.Module,
    tx: Transformation,
    *,
    trainable: Patterns | nnx.filterlib.Filter,
    mesh: Mesh | AbstractMesh,
    shard_opt: OptShardings = opt_shardings,
    extras: Extras = Extras(),
) -> tuple[Definition, Arrays]:
    """Splits a module into definition and arrays, with every sharding decided. Copies nothing.

    Args:
        model: The module.
        tx: Optimizer, or a function of the placed parameters.
        trainable: Name patterns or a flax.nnx filter.
        mesh: The mesh, of Auto axes. Arrays on its twin of Explicit axes are moved to it.
        shard_opt: Shards the optimizer state.
        extras: Optional state.

    Raises:
        ValueError: `trainable` matches nothing, an array lies on another mesh, a mesh axis splits
            neither rows, tokens nor a parameter, or the transformation would change the dtype or
            the tree of its own state.
    """
    graphdef, *states = nnx.split(model, trainable_filter(trainable, model), nnx.Param, ...)
    params, frozen, rest = (retyped(nnx.to_pure_dict(state), mesh) for state in states)
    if not jax.tree.leaves(params):
        raise ValueError(
            f"trainable must match at least one Variable of the model, got "
            f"trainable={trainable!r} for {type(model).__name__}; pass a Variable type such as "
            f"nnx.Param, another filter of flax.nnx, or patterns such as '**.lora_*'"
        )

    def placed(tree: Any, *, by_shape: bool) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, x: _sharding(name_of(path), x, mesh, by_shape=by_shape), tree
        )

    param_shardings, frozen_shardings = (placed(x, by_shape=True) for x in (params, frozen))
    check_uses(mesh, (param_shardings, frozen_shardings))
    structs = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype, sharding=s),
        params,
        param_shardings,
    )
    with ambient(mesh):
        tx = transformation(tx, structs)
        check_optimizer(tx, structs)
        placed_opt = retyped(_placed_opt(shard_opt, tx, structs), mesh)
    everywhere = NamedSharding(mesh, PartitionSpec())
    shardings = State(
        step=everywhere,
        params=param_shardings,
        frozen=frozen_shardings,
        rest=placed(rest, by_shape=False),
        opt=placed_opt,
        ema=param_shardings if extras.ema else None,
        guard=jax.tree.map(lambda _: everywhere, _history(extras.guard)),
        skips=jax.tree.map(lambda _: everywhere, no_skips()),
    )
    definition = Definition(
        graphdef=graphdef,
        shardings=shardings,
        paths=tuple(nnx.to_flat_state(state).paths for state in states),
        kept=_kept(states),
        tx=tx,
        guard=extras.guard,
    )
    return definition, Arrays(params=params, frozen=frozen, rest=rest)


def _kept(states: Sequence[nnx.State]) -> frozenset[str]:
    """Returns the names of the Variables with the metadata `keep_dtype=True`."""
    return frozenset(
        name_of(path)
        for state in states
        for path, variable in nnx.to_flat_state(state)
        if isinstance(variable, nnx.Variable) and variable.get_metadata("keep_dtype", False)
    )


def place(tree: Any, shardings: Any) -> Any:
    """Returns `jax.device_put(tree, shardings)`, for typed keys and several processes too.

    `jax.device_put` refuses typed keys, such as those of `nnx.Rngs`, on a mesh with devices of
    other processes, and arrays that are committed to a device of this process.

    Args:
        tree: Arrays. Each process passes the same values, or arrays that lie on a mesh of all.
        shardings: One sharding, or a tree of them.

    Example:

        >>> from dovetail_train import fsdp_shardings, make_mesh
        >>> model = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        >>> nnx.update(model, place(nnx.state(model), fsdp_shardings(model, make_mesh())))
    """
    return jax.tree.map(put, tree, jax.tree.broadcast(shardings, tree))


@jax.transfer_guard("allow")
def build(definition: Definition, arrays: Arrays) -> State:
    """Returns the state before the first update, placed by the definition's shardings.

    Copies the arrays: the module stays usable when a step donates the state.
    """
    at, tx = definition.shardings, definition.tx

    def copy(x: Any, sharding: Any) -> Any:
        # device_put shares aligned NumPy memory with a CPU, also with may_alias=False.
        x = x if isinstance(x, jax.Array) else np.array(x)
        return put(x, sharding, may_alias=False)

    def copied(tree: Any, shardings: Any) -> Any:
        return jax.tree.map(copy, tree, shardings)

    def init_optimizer(params: Any) -> Any:  # the name of the compiled program
        return _strong(tx.init(params))

    params = copied(arrays.params, at.params)
    with ambient(at.step.mesh):
        opt = jax.jit(init_optimizer, out_shardings=at.opt)(params)
        ema = None if at.ema is None else jax.jit(init_averages, out_shardings=at.ema)(params)
    return State(
        step=jax.device_put(np.int32(0), at.step),
        params=params,
        frozen=copied(arrays.frozen, at.frozen),
        rest=copied(arrays.rest, at.rest),
        opt=opt,
        ema=ema,
        skips=copied(no_skips(), at.skips),
        guard=copied(_history(definition.guard), at.guard),
    )


def abstract(definition: Definition, arrays: Arrays) -> State:
    """Returns the same as ShapeDtypeStructs with shardings, the target of a restore."""
    at, tx = definition.shardings, definition.tx

    def like(tree: Any, shardings: Any) -> Any:
        return jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype, sharding=s), tree, shardings
        )

    params = like(arrays.params, at.params)
    with ambient(at.step.mesh):
        opt = like(jax.eval_shape(tx.init, params), at.opt)
        ema = None if at.ema is None else like(jax.eval_shape(init_averages, params), at.ema)
    return State(
        step=jax.ShapeDtypeStruct((), jnp.int32, sharding=at.step),
        params=params,
        frozen=like(arrays.frozen, at.frozen),
        rest=like(arrays.rest, at.rest),
        opt=opt,
        ema=ema,
        skips=like(jax.eval_shape(no_skips), at.skips),
        guard=like(jax.eval_shape(lambda: _history(definition.guard)), at.guard),
    )


def train_item(state: State) -> dict[str, Any]:
    """Returns the item `train`: everything except parameters, which other programs read alone."""
    rest = {"step": state.step, "frozen": state.frozen, "rest": state.rest, "opt": state.opt}
    rest["skips"] = state.skips
    extras = {"ema": state.ema, "guard": state.guard}
    return rest | {name: tree for name, tree in extras.items() if tree is not None}


def _history(guard: StepGuard | None) -> Any:
    return None if guard is None else guard.begin()


def _sharding(name: str, x: Any, mesh: Mesh | AbstractMesh, *, by_shape: bool) -> NamedSharding:
    now = getattr(x, "sharding", None)  # a NumPy array has none
    if isinstance(now, NamedSharding) and now.mesh == mesh:
        return now
    if isinstance(now, NamedSharding) and now.mesh.size > 1:
        like = "other devices in " if dict(now.mesh.shape) == dict(mesh.shape) else ""
        raise ValueError(
            f"arrays of the model must lie on the trainer's mesh {dict(mesh.shape)}, got {name!r} "
            f"on {like}{dict(now.mesh.shape)}; pass that mesh as Trainer(mesh=...)"
        )
    if by_shape:
        return sharding_by_shape(jnp.shape(x), mesh, min_size=_MIN_SIZE)
    return NamedSharding(mesh, PartitionSpec())


def _placed_opt(shard_opt: OptShardings, tx: optax.GradientTransformation, params: Any) -> Any:
    """Returns the sharding of each array of the optimizer's state."""
    placed = shard_opt(tx, params)
    like = jax.tree.structure(jax.eval_shape(tx.init, params))
    if jax.tree.structure(placed) != like:
        raise ValueError(
            f"opt_shardings must return a tree like tx.init(params), {like}, got "
            f"{jax.tree.structure(placed)}; leave opt_shardings out for the parameters' shardings"
        )
    return placed


def init_averages(params: Any) -> Any:
    """Returns a float32 copy of the parameters: the moving averages before the first update."""
    return jax.tree.map(lambda p: jnp.array(p, jnp.float32, copy=True), params)


def _strong(tree: Any) -> Any:
    """Removes weak types, which would make the second step compile again."""
    return jax.tree.map(
        lambda x: jax.lax.convert_element_type(x, x.dtype) if jax.typeof(x).weak_type else x, tree
    )

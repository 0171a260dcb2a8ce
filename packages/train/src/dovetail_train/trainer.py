# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer: a model, an Optax transformation and a loss become a step and a loop."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from dovetail_train import _fit
from dovetail_train._patterns import Patterns
from dovetail_train.clock import Rates
from dovetail_train.flops import Flops, count_flops
from dovetail_train.guard import StepGuard, check_guard
from dovetail_train.hooks import Hook
from dovetail_train.mesh import ambient, batch_placement, make_mesh, row_shards
from dovetail_train.metrics import Metrics
from dovetail_train.peaks import peak_flops as peak_of
from dovetail_train.precision import Precision
from dovetail_train.program import Program
from dovetail_train.sinks import Sink
from dovetail_train.state import (
    Arrays,
    Definition,
    Extras,
    OptShardings,
    State,
    Transformation,
    abstract,
    build,
    opt_shardings,
    split,
)
from dovetail_train.step import (
    Batch,
    Loss,
    make_gradients,
    make_objective,
    mean_loss,
    split_rows,
)
from dovetail_train.store import Store
from dovetail_train.update import make_step


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Prepared:
    """A model made ready; the step compiles on the first call of each shape of batch."""

    definition: Definition
    step: Callable[..., Any]


class Trainer:
    """Trains any NNX module with any Optax transformation on any mesh.

    tx: its updates are added to the parameters; it gets the loss as `value`, if it takes it. A
    transformation that must know where the parameters lie is a function of these, as
    ShapeDtypeStructs with shardings. loss: see `Loss`. weights: factors of the terms of a loss that
    returns several (default 1; 0 makes a term a metric). mesh: by default the first device alone;
    `make_mesh()` has all of them, `abstract_mesh()` absent ones, for which the trainer can only
    `estimate`. Parameters with a NamedSharding on the mesh keep it, others are placed by
    `fsdp_shardings`. trainable: patterns over the names of parameters, "**.lora_*", or a
    filter of flax.nnx; what it leaves out is frozen.
    accumulate: the number of microbatches of a step; the result does not depend on it beyond
    rounding. opt_shardings: where the state of tx lies; by default as the parameters, where shapes
    agree. precision: the dtype inside the loss. ema: the decay of a moving average of the
    parameters, kept in float32 (`model(state, ema=True)`). guard: a rule that refuses spikes, such
    as dovetail_optim.Guard(); its history is part of the state. By default only steps are refused
    whose loss or gradient is not finite. max_skips: how many steps in a row may be refused before
    `fit` ends. With 0 and no guard nothing is refused, `fit` ends at the first step that is not
    finite, and a step needs less memory: it need not hold one gradient tree. seed: of the key that
    the loss gets.
    flops: of a step, and peak_flops: per second of one device; by default counted from the loss
    and looked up by device kind. Without a peak there is no MFU.
    """

    def __init__(
        self,
        tx: Transformation,
        loss: Loss,
        *,
        weights: Mapping[str, float] | None = None,
        mesh: Mesh | AbstractMesh | None = None,
        trainable: Patterns | nnx.filterlib.Filter = nnx.Param,
        accumulate: int = 1,
        opt_shardings: OptShardings = opt_shardings,
        precision: Precision = Precision(compute="float32"),  # noqa: B008 - frozen
        ema: float | None = None,
        guard: StepGuard | None = None,
        max_skips: int = 10,
        seed: int = 0,
        flops: float | None = None,
        peak_flops: float | None = None,
    ) -> None:
        if accumulate < 1:
            raise ValueError(
                f"accumulate must be at least 1, got accumulate={accumulate}; write accumulate=1"
            )
        if ema is not None and not 0 < ema < 1:
            raise ValueError(
                f"ema must lie between 0 and 1, got ema={ema}; write for example ema=0.999, or "
                f"ema=None for no average"
            )
        if max_skips < 0:
            raise ValueError(
                f"max_skips must be at least 0, got max_skips={max_skips}; write max_skips=10, or "
                f"max_skips=0 to end at the first refused step"
            )
        check_guard(guard)
        if mesh is None and jax.process_count() > 1:
            raise ValueError(
                f"several processes need a mesh over all of their devices, got mesh=None with "
                f"{jax.process_count()} processes; pass mesh=make_mesh()"
            )
        self.mesh = make_mesh(devices=jax.devices()[:1]) if mesh is None else mesh
        self.precision, self.seed = precision, seed
        self.guard, self.max_skips = guard, max_skips
        self._ema = ema
        self._tx, self._loss, self._trainable = tx, loss, trainable
        self._weights, self._accumulate = dict(weights or {}), accumulate
        self._opt_shardings = opt_shardings
        self._flops, self._peak_flops = flops, peak_flops
        self._placement = batch_placement(self.mesh)
        self._prepared: _Prepared | None = None

    def init(self, model: nnx.Module) -> State:
        """The state before the first update. The arrays of the model are copied, not taken."""
        definition, arrays = self._prepare(model)
        return build(definition, arrays)

    def step(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """The state after one update, and its metrics. Donates `state`; waits for nothing.

        batch: a mapping of arrays [rows, ...], as NumPy or as `place` returns it.
        """
        prepared = self._ready()
        if jax.process_count() > 1 or self._placement.tokens > 1:
            batch = self.place(batch)
        elif not self._is_placed(batch):
            self._check_rows(batch)  # jit sends NumPy arrays to the devices faster than device_put
        with ambient(self.mesh):
            return prepared.step(state, dict(batch))

    def model(self, state: State, *, ema: bool = False, cast: bool = False) -> nnx.Module:
        """The module with the arrays of `state`, not copies: the next step donates them.

        ema: with the moving averages, in the parameters' dtypes (copies where that is not
        float32). cast: in the dtype of the precision, as the loss sees it.
        """
        params = state.params
        if ema and state.ema is None:
            raise ValueError(
                "a model of averages needs a trainer that keeps them, got ema=True with a state "
                "that has none; write Trainer(..., ema=0.999)"
            )
        if ema:
            params = jax.tree.map(lambda a, p: a.astype(p.dtype), state.ema, params)
        to = self.precision.cast if cast else lambda tree: tree
        return self._ready().definition.merge(to(params), to(state.frozen), state.rest)

    def fit(
        self,
        model: nnx.Module,
        data: Iterable[Batch],
        *,
        steps: int,
        store: Store | None = None,
        save_every: int | None = None,
        sinks: Sequence[Sink] = (),
        hooks: Sequence[Hook] = (),
        stop: Callable[[int], bool] | None = None,
    ) -> "_fit.Result":
        """Trains until `steps` updates were made in all, and returns the state.

        Continues from what `store` holds, bit for bit. Saves every `save_every` updates, at the
        end, and when `stop` says so, which is asked after every update with their number, and
        again after each hook and between the batches of an `Eval`; hooks that it kept from their
        end are called when the run is continued, at every start until a later step is saved. The
        scalars of step n describe the state after n updates: the loss of step 0 is that of the
        fresh model.

        Raises BadStep naming the step when the loss or the gradient is not finite at the first
        step, or when more than `max_skips` steps in a row were refused; nothing that followed is
        saved. Ctrl-C saves nothing either, and loses what came after the last
        save: to save then, pass a `stop` that a signal handler sets.
        """
        run = _fit.Run(
            self,
            data,
            begin=self._begin(model),
            steps=steps,
            store=store,
            save_every=save_every,
            sinks=sinks,
            hooks=hooks,
            stop=stop,
        )
        del model  # its arrays were copied; where the caller holds them no longer, they are freed
        return run.run()

    def place(self, batch: Batch) -> dict[str, jax.Array]:
        """The batch on the mesh: rows over (data, fsdp, expert), the second axis over context.

        With several processes, each passes its own rows. Raises ValueError when the rows cannot
        be split among the microbatches and the devices, or the tokens among those of context.
        """
        if self._is_placed(batch):
            return dict(batch)
        self._check_rows(batch)
        places = {name: self._placement.of(np.ndim(x)) for name, x in batch.items()}
        if jax.process_count() == 1:
            return jax.device_put(dict(batch), places)
        return {
            name: jax.make_array_from_process_local_data(places[name], np.asarray(x))
            for name, x in batch.items()
        }

    def program(self, model: nnx.Module, batch: Batch) -> Program:
        """The step for a batch of these shapes, without running or allocating anything.

        The model and the batch may be of ShapeDtypeStructs.
        """
        definition, arrays = self._split(model)
        self._check_rows(batch)
        rows = {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._placement.of(x.ndim))
            for name, x in batch.items()
        }
        return Program(
            fn=self._step_of(definition),
            args=(abstract(definition, arrays), rows),
            donate=(0,),
            out_shardings=self._out_shardings(definition),
            mesh=self.mesh,
            objective=self._objective_of(definition),
            gradients=self._whole_gradients_of(definition),
            accumulate=self._accumulate,
            model_flops=self._flops,
        )

    def count_flops(self, state: State, batch: Batch) -> Flops:
        """The products of one step's gradient over the whole batch; nothing is computed."""
        gradients = self._whole_gradients_of(self._ready().definition)
        with ambient(self.mesh):
            return count_flops(gradients, state, dict(batch))

    def rates(self, state: State, batch: Batch) -> Rates:
        """What the time of a step is measured against."""
        peak = self._peak_flops
        if peak is None:
            kind = self._concrete("rates").devices.flat[0].device_kind
            peak = peak_of(kind, self.precision.compute)
        if peak is None:
            return Rates(flops=self._flops)
        peak *= self.mesh.size
        if self._flops is not None:
            return Rates(flops=self._flops, peak_flops=peak)
        counted = self.count_flops(state, batch)
        if counted.opaque or not counted.model:
            return Rates(peak_flops=peak)
        return Rates(
            flops=float(counted.model), recomputed=float(counted.recomputed), peak_flops=peak
        )

    def _begin(self, model: nnx.Module) -> _fit.Beginning:
        definition, arrays = self._prepare(model)
        return _fit.Beginning(
            params=arrays.params,
            target=abstract(definition, arrays),
            build=lambda: build(definition, arrays),
        )

    def _concrete(self, what: str) -> Mesh:
        if isinstance(self.mesh, AbstractMesh):
            raise RuntimeError(
                f"{what} needs devices, got a trainer on {self.mesh}; write Trainer(..., "
                f"mesh=make_mesh(...)), or estimate(trainer, model, batch)"
            )
        return self.mesh

    def _prepare(self, model: nnx.Module) -> tuple[Definition, Arrays]:
        self._concrete("training")
        definition, arrays = self._split(model)
        before = self._prepared
        if before is None or not definition.is_like(before.definition):  # else compiled already
            step = jax.jit(
                _for_state_like(definition.shardings, self._step_of(definition)),
                donate_argnums=0,
                in_shardings=(None, self._placement.rows if self._placement.tokens == 1 else None),
                out_shardings=self._out_shardings(definition),
            )
            self._prepared = _Prepared(definition=definition, step=step)
        return definition, arrays

    def _out_shardings(self, definition: Definition) -> tuple[State, NamedSharding]:
        return definition.shardings, NamedSharding(self.mesh, PartitionSpec())

    def _ready(self) -> _Prepared:
        if self._prepared is None:
            raise RuntimeError(
                "the trainer must know the model first, got no call of init; "
                "write state = trainer.init(model)"
            )
        return self._prepared

    def _split(self, model: nnx.Module) -> tuple[Definition, Arrays]:
        definition, arrays = split(
            model,
            self._tx,
            trainable=self._trainable,
            mesh=self.mesh,
            shard_opt=self._opt_shardings,
            extras=Extras(ema=self._ema is not None, guard=self.guard),
        )
        self.precision.check(arrays.params, arrays.frozen)
        return definition, arrays

    def _gradients_of(self, definition: Definition, *, accumulate: int) -> Callable[..., Any]:
        return make_gradients(
            make_objective(definition, self._loss, self.precision),
            weights=self._weights,
            accumulate=accumulate,
            split_rows=lambda batch: split_rows(
                batch, accumulate=accumulate, placement=self._placement
            ),
        )

    def _whole_gradients_of(self, definition: Definition) -> Callable[..., Any]:
        gradients = self._gradients_of(definition, accumulate=1)
        return lambda state, batch: gradients(state, batch, jax.random.key(self.seed))

    def _objective_of(self, definition: Definition) -> Callable[..., Any]:
        objective = make_objective(definition, self._loss, self.precision)

        def whole(params: Any, state: State, batch: Batch) -> jax.Array:
            key = jax.random.key(self.seed)
            terms, _ = objective(params, state.frozen, state.rest, batch, key)
            counts = {name: jax.lax.stop_gradient(term[1]) for name, term in terms.items()}
            return mean_loss(terms, counts, self._weights)

        return whole

    def _step_of(self, definition: Definition) -> Callable[..., Any]:
        gradients = self._gradients_of(definition, accumulate=self._accumulate)
        return make_step(
            gradients,
            definition.tx,
            weights=self._weights,
            seed=self.seed,
            guard=self.guard,
            max_skips=self.max_skips,
            ema=self._ema,
        )

    def _is_placed(self, batch: Batch) -> bool:
        return bool(batch) and all(
            isinstance(x, jax.Array) and x.sharding == self._placement.of(x.ndim)
            for x in batch.values()
        )

    def _check_rows(self, batch: Batch) -> None:
        shards = row_shards(dict(self.mesh.shape))
        divisor, processes = self._accumulate * shards, jax.process_count()
        rows = {name: np.shape(x)[:1] for name, x in batch.items()}
        if not rows or len(set(rows.values())) > 1 or () in rows.values():
            raise ValueError(
                f"every array of a batch must have the same number of rows, got "
                f"{ {name: np.shape(x) for name, x in batch.items()} }; "
                f"give each a first axis of rows"
            )
        count = next(iter(rows.values()))[0] * processes
        if count == 0 or count % divisor:
            raise ValueError(
                f"the rows of a batch must be divisible by accumulate × the data axes "
                f"{self._accumulate} × {shards} = {divisor}, got rows={count}; use "
                f"{max(1, count // divisor) * divisor} rows or another accumulate"
            )
        self._placement.check_tokens({name: np.shape(x) for name, x in batch.items()})


def _for_state_like(like: State, step: Callable[..., Any]) -> Callable[..., Any]:
    """`step`, refusing a state of another tree; under jit that costs nothing but at compilation."""

    def checked(state: State, batch: Batch) -> Any:
        if jax.tree.structure(state) != jax.tree.structure(like):
            raise ValueError(
                f"state must be of the model that init was called with last, got a tree of "
                f"{len(jax.tree.leaves(state))} leaves where it has {len(jax.tree.leaves(like))} "
                f"(or other names); call init(model) again"
            )
        return step(state, batch)

    return checked

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer: joins a model, an Optax transformation and a loss to a step and a loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh

from dovetail_train import _elsewhere
from dovetail_train._keys import key_data, typed
from dovetail_train._patterns import Patterns
from dovetail_train.logs.sinks import Sink
from dovetail_train.loop.clock import Rates
from dovetail_train.loop.fit import Result, Run
from dovetail_train.loop.hooks import Hook
from dovetail_train.loop.prefetch import DrawnData
from dovetail_train.mesh.axes import auto_mesh, retyped
from dovetail_train.mesh.devices import peak_flops as peak_of
from dovetail_train.mesh.mesh import ambient, batch_placement, make_mesh
from dovetail_train.mesh.processes import watch_processes
from dovetail_train.resume.resume import Beginning, Mode
from dovetail_train.step import checks
from dovetail_train.step.flops import Flops, count_flops, hidden_work
from dovetail_train.step.guard import StepGuard
from dovetail_train.step.metrics import Metrics
from dovetail_train.step.options import AfterUpdate, Options, Precision
from dovetail_train.step.program import Program, step_program
from dovetail_train.step.state import Arrays, OptShardings, State, Transformation, abstract, build
from dovetail_train.step.state import opt_shardings as like_params
from dovetail_train.step.terms import Batch, Loss
from dovetail_train.step.update import TrainStep
from dovetail_train.store import Store

_log = logging.getLogger(__name__)


@_elsewhere.trainer
class Trainer:
    """Trains an NNX module with an Optax transformation on a mesh.

    Args:
        tx: The optimizer. Its updates are added to the parameters. It receives those of `value`,
            `grad`, `value_fn` and `grad_fn` that it accepts, the loss of the batch and its gradient
            as values and functions. Pass a function of the abstract parameters
            (`jax.ShapeDtypeStruct` with shardings) if the optimizer needs their placement.
        loss: Returns (sum, count) for a batch; see `Loss`, and `GroupLoss` for pairs of rows.
        weights: Factor for each named term of the loss. Default 1. With 0 a term is only a metric.
        mesh: Devices to train on, with Auto or Explicit axes. Default: the first device.
            `make_mesh()` takes all devices; `abstract_mesh()` takes absent ones, and then only
            `estimate` works. Parameters with a `NamedSharding` on this mesh keep it;
            `fsdp_shardings` places the others.
        trainable: Name patterns, such as "**.lora_*", or a flax.nnx filter. Other parameters are
            frozen.
        accumulate: Microbatches per step. Loss and gradients do not depend on it beyond rounding,
            unless the module has state: batch statistics and streams of `nnx.Rngs` advance once per
            microbatch.
        opt_shardings: Placement of the optimizer state. Default: like the parameters of equal
            shape.
        precision: Compute dtype inside the loss. Parameters keep theirs.
        ema: Decay of a moving average of the parameters, in float32. Read it with
            `model(state, ema=True)`. None for no average.
        guard: Rejects spikes, such as `dovetail_optim.Guard()`. Its history is part of the state.
            Default: only non-finite steps are rejected.
        after_update: Called once per accepted update, inside the step, with the module after it.
            May change trained parameters and Variables that are no parameters, in place, such as
            `functools.partial(dovetail_models.update_selection_bias, rate=1e-3)`.
        max_skips: Rejected steps in a row before `fit` ends. With n = max(10, max_skips), it also
            ends at n or more rejected steps that are over a quarter of the last 4n; at the end of a
            run 3 are enough for n = 10, and fewer if they are all. With 0 and no guard nothing is
            rejected, `fit` ends at the first non-finite step, and a step needs one gradient tree
            less memory.
        seed: Seed of the key passed to the loss.
        flops: Model FLOPs per step. Default: counted from the loss.
        peak_flops: FLOP/s of one device. Default: by device kind. Unknown devices report no MFU.

    Attributes:
        mesh: `auto_mesh` of the mesh. The loss runs on it; states, metrics and batches lie on it.
            Models, and batches of any place, are moved to it without a copy where JAX can.

    Raises:
        ValueError: An option is out of range, an axis is Manual, or several processes share no
            mesh. `init` and `fit` refuse an axis that splits neither rows, tokens nor a parameter.

    Example:

        >>> import numpy as np, optax
        >>> from flax import nnx
        >>> from dovetail_train import lm_loss
        >>> from dovetail_train.testing import TinyDecoder
        >>> trainer = Trainer(optax.adamw(1e-3), lm_loss())
        >>> state = trainer.init(TinyDecoder(vocab_size=10, width=8, depth=1, rngs=nnx.Rngs(0)))
        >>> tokens = np.ones((2, 4), np.int32)
        >>> state, metrics = trainer.step(state, dict(tokens=tokens, targets=tokens, mask=tokens))
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
        opt_shardings: OptShardings | None = None,
        precision: Precision = Precision(compute="float32"),  # noqa: B008 - frozen
        ema: float | None = None,
        guard: StepGuard | None = None,
        after_update: AfterUpdate | None = None,
        max_skips: int = 10,
        seed: int = 0,
        flops: float | None = None,
        peak_flops: float | None = None,
    ) -> None:
        checks.check_placement(mesh, precision)
        checks.check_after_update(after_update)
        given = make_mesh(devices=jax.devices()[:1]) if mesh is None else mesh
        self.mesh, self._given_mesh = auto_mesh(given), given
        self.precision, self.seed = precision, seed
        self.guard, self.max_skips = guard, max_skips
        self._placement = batch_placement(self.mesh)
        self._options = Options(
            tx=tx,
            loss=loss,
            weights=dict(weights or {}),
            trainable=trainable,
            accumulate=accumulate,
            opt_shardings=opt_shardings or like_params,
            precision=precision,
            ema=ema,
            guard=guard,
            after_update=after_update,
            max_skips=max_skips,
            seed=seed,
            placement=self._placement,
        )
        self._flops, self._peak_flops = flops, peak_flops
        self._step: TrainStep | None = None

    def __repr__(self) -> str:
        axes = {name: size for name, size in self.mesh.shape.items() if size > 1} or "one device"
        o = self._options
        options = f"accumulate={o.accumulate}, ema={o.ema}, guard={o.guard!r}"
        return f"Trainer(mesh={axes}, compute={self.precision.compute!r}, {options})"

    def init(self, model: nnx.Module) -> State:
        """Returns the state before the first update. The arrays of the model are copied.

        Raises TypeError or ValueError for a model or an optimizer that cannot be trained.
        """
        step, arrays = self._prepare(model)
        return build(step.definition, arrays)

    def step(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Returns the state after one update, and its metrics. Donates `state`; waits for nothing.

        `batch` is a mapping of arrays [rows, ...], of NumPy or JAX, placed or not.
        """
        train_step = self._ready()
        if jax.process_count() > 1 or self._placement.tokens > 1 or _is_placed(batch):
            batch, sent = self.place(batch), nullcontext()
        else:
            self._check_batch(batch)  # jit sends NumPy arrays to the devices faster than device_put
            sent = jax.transfer_guard("allow")
        with ambient(self.mesh), sent:
            return train_step(state, dict(batch))

    def model(self, state: State, *, ema: bool = False, cast: bool = False) -> nnx.Module:
        """Returns the module with the arrays of `state`, not copies: the next step donates them.

        The arrays lie on the mesh that the trainer was given. A module that cannot run on Explicit
        axes needs `Trainer(mesh=auto_mesh(mesh))`.

        Args:
            state: The state.
            ema: Use the moving averages, in the parameters' dtypes (copies unless these are
                float32).
            cast: Cast to the compute dtype, as inside the loss.
        """
        if ema and state.ema is None:
            raise ValueError(
                "a model of averages needs a trainer that keeps them, got ema=True with a state "
                "that has none; write Trainer(..., ema=0.999)"
            )
        definition = self._ready().definition

        def to(tree: Any) -> Any:
            return self.precision.cast(tree, kept=definition.kept) if cast else tree

        traced = isinstance(state.step, Tracer)  # by a program of the trainer's mesh
        with nullcontext() if traced else ambient(self.mesh):
            params = state.params
            if ema:
                params = jax.tree.map(lambda a, p: a.astype(p.dtype), state.ema, params)
            arrays = to(params), to(state.frozen), state.rest
        return definition.merge(*retyped(arrays, self._given_mesh))

    def fit(
        self,
        model: nnx.Module,
        data: Iterable[Batch] | DrawnData,
        *,
        steps: int,
        store: Store | None = None,
        save_every: int | None = None,
        sinks: Sequence[Sink] = (),
        hooks: Sequence[Hook] = (),
        stop: Callable[[int], bool] | None = None,
        resume: Mode = "exact",
        **others: _elsewhere.Nothing,
    ) -> Result:
        """Trains until `steps` updates are made in all.

        Continues from the newest step in `store`, bit for bit. The scalars of step n describe the
        state after n updates: the loss of step 0 is that of the fresh model.

        Args:
            model: The model. Its arrays are copied.
            data: Batches, or a `DrawnData`. With a `store`, an iterator with get_state and
                set_state.
            steps: Number of updates in all, those of earlier launches included.
            store: Where checkpoints go. If its `save` declares `metrics`, it receives the finite
                scalars of the hooks of that step.
            save_every: Updates between saves. The end of the run and a stop request also save.
            sinks: Destinations of scalars. Process 0 alone writes to them; see `Sink`.
            hooks: Callbacks, on every process; one that returns `StopRun` ends the run. Hooks
                interrupted by a stop request run first when the run is resumed, at every launch
                until a later step is saved.
            stop: Receives the number of updates after each of them, after each hook, and between
                the batches of an `Eval`. True saves and ends the run.
            resume: "exact" refuses to add or drop an average, a guard or arrays of the optimizer;
                "convert" keeps the arrays that fit and makes the others. See the table "Resuming"
                in the documentation for all changes: free, logged, converted or refused.
            **others: None: each is refused with the argument to write.

        Returns:
            State, number of updates, last scalars and wall time.

        Raises:
            ValueError: An option is out of range, the data end early, or the stored run differs in
                a setting that a resume refuses.
            TypeError: An argument is of another kind, such as a path as a sink.
            BadStep: The first step is not finite, or too many were rejected (see `max_skips`).
                Nothing after that is saved. Or so it is at the end of the run, or the last step is
                not finite: all is saved. Ctrl-C saves nothing: pass a `stop` set by a signal
                handler to save first.
            RuntimeError: Another process of the run was lost; see `initialize_distributed`.
        """
        if others:
            _elsewhere.refuse_of_fit(Trainer.fit, others)
        with watch_processes():
            run = Run(
                self,
                data,
                begin=self._begin(model),
                steps=steps,
                store=store,
                save_every=save_every,
                sinks=sinks,
                hooks=hooks,
                stop=stop,
                resume=resume,
            )
            del model  # its arrays were copied; if the caller holds them no longer, they are freed
            return run.run()

    @jax.transfer_guard("allow")  # of several processes it is not explicit
    def place(self, batch: Batch) -> dict[str, jax.Array]:
        """Places a batch on the mesh: rows over (data, fsdp, expert), the second axis over context.

        With several processes, each passes its own rows. Raises ValueError if the rows cannot be
        split among microbatches and devices, or the tokens among the devices of context.
        """
        batch = retyped(dict(batch), self.mesh) if isinstance(batch, Mapping) else batch
        if self._placement.holds(batch):
            return dict(batch)
        self._check_batch(batch)
        places = {name: self._placement.of(x.ndim) for name, x in batch.items()}
        if jax.process_count() == 1:
            return jax.device_put(dict(batch), places)
        joined, rows = jax.make_array_from_process_local_data, batch.items()
        return {n: typed(joined(places[n], np.asarray(key_data(x))), x) for n, x in rows}

    def program(self, model: nnx.Module, batch: Batch) -> Program:
        """Returns the step for a batch of these shapes, without running or allocating anything.

        Model and batch may consist of ShapeDtypeStructs.
        """
        self._check_batch(batch)
        return step_program(self._options, model, batch, model_flops=self._flops)

    def count_flops(self, state: State, batch: Batch) -> Flops:
        """Counts the FLOPs of one step's gradient over the whole batch. Computes nothing."""
        objective = self._ready().objective
        with ambient(self.mesh):
            return count_flops(objective.gradient, state, dict(batch))

    def rates(self, state: State, batch: Batch) -> Rates:
        """Returns the FLOPs of a step and of the devices, for MFU."""
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
        if counted.opaque and jax.process_index() == 0:
            _log.warning(
                "mfu is left out: could not be counted: %s; or pass Trainer(flops=)",
                hidden_work(counted.opaque),
            )
        if counted.opaque or not counted.model:
            return Rates(peak_flops=peak)
        return Rates(
            flops=float(counted.model), recomputed=float(counted.recomputed), peak_flops=peak
        )

    def _begin(self, model: nnx.Module) -> Beginning:
        step, arrays = self._prepare(model)
        return Beginning(
            params=arrays.params,
            target=abstract(step.definition, arrays),
            build=lambda: build(step.definition, arrays),
            definition=step.definition,
            options=step.options,
        )

    def _concrete(self, what: str) -> Mesh:
        if isinstance(self.mesh, AbstractMesh):
            raise RuntimeError(
                f"{what} needs devices, got a trainer on {self.mesh}; write Trainer(..., "
                f"mesh=make_mesh(...)), or estimate(trainer, model, batch)"
            )
        return self.mesh

    def _prepare(self, model: nnx.Module) -> tuple[TrainStep, Arrays]:
        """Returns the step for a model, and the arrays of the model."""
        self._concrete("training")
        step, arrays = TrainStep.of(model, self._options)
        if self._step is None or not step.definition.is_like(self._step.definition):
            self._step = step  # compiles at its first call
        return self._step, arrays

    def _ready(self) -> TrainStep:
        if self._step is None:
            raise RuntimeError(
                "this trainer must know the model first, got no call of init or fit; "
                "write state = trainer.init(model), or use the trainer that made the state"
            )
        return self._step

    def _check_batch(self, batch: Batch) -> None:
        self._placement.check(batch, accumulate=self._options.accumulate, group=self._options.group)


def _is_placed(batch: Any) -> bool:
    """Tests for arrays with a place of their own, on this mesh or elsewhere."""
    arrays = batch.values() if isinstance(batch, Mapping) else ()
    return any(isinstance(x, jax.Array) and x.committed for x in arrays)

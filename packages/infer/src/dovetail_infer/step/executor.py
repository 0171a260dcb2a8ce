# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs steps on the device: compiled programs, parameters, and the state that steps replace.

`dispatch` starts a step and returns a `Handle` at once. Reading the handle waits for the device, so
the host plans the next step before it reads the last one.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dovetail_infer.schedule.plan import Limits
from dovetail_infer.step import logits as logit
from dovetail_infer.step import rules as ruling
from dovetail_infer.step.batch import Batch, SlotState
from dovetail_infer.step.buckets import Bucket, covering, lattice, least_kind, smallest
from dovetail_infer.step.handle import Handle, Want
from dovetail_infer.step.layout import Layout
from dovetail_infer.step.placement import Placement
from dovetail_infer.step.program import DeviceState, StepFunction
from dovetail_infer.step.weights import dotted_leaves, updated, with_adapter
from dovetail_infer.types import Decoder, Operations

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A program of an executor.

    Attributes:
        bucket: Its size.
        ruled: Whether it gives each `Sampling.rule` its logits. Compiled at the first rule.
        compiled: Whether it is compiled.
        compile_s: Seconds of compilation; 0 before.
        bytes: Temporary memory and outputs; 0 before it is compiled.
    """

    bucket: Bucket
    ruled: bool
    compiled: bool
    compile_s: float
    bytes: int


@dataclasses.dataclass(frozen=True)
class _Compiled:
    call: Any
    compile_s: float
    bytes: int


class Executor:
    """The device side of an engine.

    Args:
        model: The decoder. Its arrays are shared, not copied: do not donate them.
        operations: The hot operations.
        layout: Its cache, of `discover`.
        limits: Sizes.
        max_logprobs: Number of likeliest tokens that "full" and "score" return.
        adapters: Number of adapters of the decoder; `features` then takes `adapter_ids`.
        invariant: Whether all steps run at one size, and attention with the same option.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        operations: Operations,
        layout: Layout,
        limits: Limits,
        max_logprobs: int = 0,
        adapters: int = 0,
        invariant: bool = False,
    ):
        self.layout, self.limits = layout, limits
        self.late_compiles = 0
        graph, state = nnx.split(model)
        leaves, tree = jax.tree.flatten(state)
        self._names = tuple(dotted_leaves(state))
        self._place = Placement.of(leaves)
        self._parameters = tuple(self._place.parameter(x) for x in leaves)
        self._parameter_shapes = tuple(
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in self._parameters
        )
        placed = jax.tree.unflatten(tree, self._parameters)
        self._pool_shardings = self._place.pools(graph, placed, layout)
        self._function = StepFunction(
            graph=graph,
            tree=tree,
            operations=operations,
            layout=layout,
            columns=-(-limits.max_length // limits.page_size),
            max_rows=limits.max_rows,
            max_logprobs=min(max_logprobs, layout.vocab_size),
            adapters=adapters > 0,
            invariant=invariant,
            whole=None if self._place.mesh is None else self._place.whole,
            branches=self._place.platform != "gpu",
        )
        self._lattice = lattice(
            step_tokens=limits.step_tokens,
            max_rows=limits.max_rows,
            prefill_tokens=limits.prefill_tokens,
            invariant=invariant,
            gpu=self._place.platform == "gpu",
        )
        self.rules = ruling.Rules(self._shapes().slots, self._place)
        self._compiled: dict[tuple[Bucket, bool], _Compiled] = {}
        self._choices: dict[tuple[Any, ...], tuple[Bucket, bool]] = {}
        self._rest: threading.Thread | None = None  # compiles while steps run
        self._stopped = threading.Event()
        self._host_parameters: tuple[Any, ...] | None = None
        self._state: DeviceState | None = self._fresh_state()

    def programs(self) -> list[Program]:
        """Returns all programs, compiled or not."""
        keys = [(bucket, False) for bucket in self._lattice]
        keys += [key for key in list(self._compiled) if key not in keys]  # other threads ask too
        return [self._program(key) for key in keys]

    def compile(
        self, which: Iterable[Bucket] | None = None, *, threads: int | None = None
    ) -> list[Program]:
        """Compiles programs. Tracing uses this thread, XLA the others.

        Args:
            which: Buckets of `programs()`. None: all that are not compiled.
            threads: Number of compilations at once. None: the number of processors.

        Returns:
            The programs.
        """
        wanted = self._lattice if which is None else tuple(which)
        keys = [(b, False) for b in wanted if (b, False) not in self._compiled]
        with ThreadPoolExecutor(threads) as pool:
            futures = {key: pool.submit(_compile, self._lower(*key)) for key in keys}
            for key, future in futures.items():
                self._compiled[key] = future.result()
        self._choices.clear()
        _ = self._set_slot
        return [self._program((bucket, False)) for bucket in wanted]

    def compile_few(self) -> list[Program]:
        """Compiles what can run every step, and starts a thread for all other programs.

        Until that has ended, steps take the smallest program that is compiled. `stop` ends it. With
        `invariant` all are compiled first, since other programs give other bits.
        """
        if self._function.invariant:
            return self.compile()
        few = self.compile(covering(self._lattice))
        if self._rest is None:
            self._rest = threading.Thread(target=self._compile_rest, name="dovetail-compile")
            self._rest.start()
        return few

    def stop(self) -> None:
        """Ends the thread of `compile_few`, after the program that it compiles."""
        self._stopped.set()
        rest = self._rest
        if rest is not None and rest is not threading.current_thread():
            rest.join()

    def dispatch(
        self,
        batch: Batch,
        *,
        kind: logit.Kind,
        want: Collection[Want] = (),
        rules: Mapping[int, Any] | None = None,
    ) -> Handle:
        """Starts a step.

        A program that is not compiled is compiled first; `late_compiles` counts these.

        Args:
            batch: Input, without padding.
            kind: What the step needs.
            want: Outputs to read beside tokens and their log-probabilities.
            rules: Program of each slot with a rule, of `rules`.

        Returns:
            The running step. Steps run in the order of their dispatch.

        Raises:
            RuntimeError: The state is released, or a failed step took it: call `rebuild`.
        """
        tokens, rows = len(batch.tokens), len(batch.counts)
        ruled = bool((batch.samples & batch.options.ruled).any())
        key = self._choose(batch, least_kind(kind, batch), ruled)
        vector = self._function.packing(key[0]).pack(batch)
        call = self._compiled[key].call
        state, self._state = self._live_state(), None  # a failed call may have taken its buffers
        state, outputs = call(self._parameters, state, vector)
        drawn: list[ruling.Ruled] = []
        if ruled:
            given = outputs.blocks, state.last, state.slots
            last, slots, drawn = ruling.draw(rules or {}, batch, *given)
            state = state._replace(last=last, slots=slots)
        self._state = state
        return Handle(outputs, drawn, rows=rows, tokens=tokens, want=want)

    def set_slot(self, slot: int, state: SlotState) -> None:
        """Replaces what the device keeps about the request of a slot."""
        live = self._live_state()
        self._state = None
        self._state = live._replace(slots=self._set_slot(live.slots, np.int32(slot), state))

    def update_weights(self, params: Any, *, place: int | None = None) -> None:
        """Copies new values of all or some parameters into place, before the next step.

        Args:
            params: An `nnx.State`, nested mappings, or a flat mapping of dotted names to arrays.
                They are cast to the dtypes and moved to the shardings of the engine.
            place: Replaces one adapter of the stack alone, see `with_adapter`.

        Raises:
            ValueError: As `updated` and `with_adapter`. Nothing has changed then.
        """
        released = self._host_parameters
        values = self._parameters if released is None else [value for value, _ in released]
        now = dict(zip(self._names, values, strict=True))
        now |= updated(now, params) if place is None else with_adapter(now, params, place)
        if released is None:
            self._parameters = tuple(now.values())
        else:
            places = (place for _, place in released)
            self._host_parameters = tuple(zip(now.values(), places, strict=True))

    def rebuild(self) -> None:
        """Makes an empty cache, after a step that failed."""
        self._state = None
        self._state = self._fresh_state()

    def release(self) -> None:
        """Frees the cache. On an accelerator the weights move to the host's memory."""
        self._state = None
        if self._host_parameters is None and self._place.platform != "cpu":
            places = [x.sharding for x in self._parameters]
            self._host_parameters = tuple(
                zip(jax.device_get(self._parameters), places, strict=True)
            )
            self._parameters = ()

    def restore(self) -> None:
        """Undoes `release`, with an empty cache."""
        if self._host_parameters is not None:
            self._parameters = tuple(jax.device_put(x, at) for x, at in self._host_parameters)
            self._host_parameters = None
        self.rebuild()

    def _live_state(self) -> DeviceState:
        if self._state is None:
            raise RuntimeError(
                "A step needs the cache, got none: it was released, or a step failed. Call "
                "restore() or rebuild()."
            )
        return self._state

    def _shapes(self) -> Any:
        """Returns the `DeviceState` of shapes and shardings."""
        limits, whole = self.limits, self._place.whole
        slots = limits.max_rows, self.layout.vocab_size
        shape: Any = functools.partial(jax.ShapeDtypeStruct, sharding=whole)
        pools: Any = tuple(
            jax.ShapeDtypeStruct(
                (limits.groups[layer.group].pages, *layer.page_shape(limits.page_size)),
                layer.dtype,
                sharding=sharding,
            )
            for layer, sharding in zip(self.layout.layers, self._pool_shardings, strict=True)
        )
        kinds = (jnp.float32, jnp.bool_, jnp.bool_, jnp.int32)
        return DeviceState(
            pools,
            shape((limits.max_rows,), jnp.int32),
            logit.State(*(shape(slots, kind) for kind in kinds)),
        )

    def _fresh_state(self) -> DeviceState:
        return jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype, device=x.sharding), self._shapes()
        )

    def _choose(self, batch: Batch, kind: logit.Kind, ruled: bool) -> tuple[Bucket, bool]:
        """Returns the program of a step, compiled."""
        tokens, rows, single = len(batch.tokens), len(batch.counts), (batch.counts == 1).all()
        step = tokens, rows, kind, bool(single), ruled
        choice = self._choices.get(step)
        if choice is None:
            some = self._rest is not None  # read first: what is chosen among some is not kept
            able = [b for b in self._lattice if not some or (b, False) in self._compiled]
            bucket = smallest(able, tokens=tokens, rows=rows, kind=kind, single=step[3])
            choice = bucket, ruled
            if choice not in self._compiled:
                self._compiled[choice] = _compile(self._lower(*choice))
                self.late_compiles += not ruled
            if not some:
                self._choices[step] = choice
        return choice

    def _lower(self, bucket: Bucket, ruled: bool) -> Any:
        function = self._function.of(bucket, ruled=ruled)
        state, whole = self._shapes(), self._place.whole
        places = jax.tree.map(lambda x: x.sharding, state)
        size = self._function.packing(bucket).size
        vector = jax.ShapeDtypeStruct((size,), jnp.int32, sharding=whole)
        step = jax.jit(function, donate_argnums=1, out_shardings=(places, whole))
        with self._place.scope():
            return step.lower(self._parameter_shapes, state, vector)

    def _compile_rest(self) -> None:
        try:
            for bucket in self._lattice:
                if self._stopped.is_set():
                    return
                self.compile([bucket], threads=1)
            _log.info("all %d programs are compiled", len(self._lattice))
        except Exception:  # the step that needs the program tries again, and its requests fail
            _log.exception("a program could not be compiled")
        self._rest = None

    @functools.cached_property
    def _set_slot(self) -> Any:
        """The compiled program of `set_slot`."""

        def put(slots: logit.State, slot: Any, state: SlotState) -> logit.State:
            return logit.State(*(x.at[slot].set(y) for x, y in zip(slots, state, strict=True)))

        slots = self._shapes().slots
        shapes: Any = (jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in slots)
        row = SlotState(*shapes)
        places = jax.tree.map(lambda x: x.sharding, slots)
        slot = jax.ShapeDtypeStruct((), jnp.int32)
        with self._place.scope():
            jitted = jax.jit(put, donate_argnums=0, out_shardings=places)
            return jitted.lower(slots, slot, row).compile()

    def _program(self, key: tuple[Bucket, bool]) -> Program:
        made = self._compiled.get(key)
        return Program(
            bucket=key[0],
            ruled=key[1],
            compiled=made is not None,
            compile_s=0.0 if made is None else made.compile_s,
            bytes=0 if made is None else made.bytes,
        )


def _compile(lowered: Any) -> _Compiled:
    start = time.perf_counter()
    call = lowered.compile()
    seconds = time.perf_counter() - start
    memory = call.memory_analysis()
    size = 0
    if memory is not None:
        # Outputs that are not the donated state.
        size = memory.temp_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return _Compiled(call, seconds, size)

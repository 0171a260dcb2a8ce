# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The one jitted function: reads tokens, writes the cache, draws the next tokens.

The tokens that a step draws stay on the device, in `DeviceState.last` by slot. The next step can
thus be dispatched before the host has read them. All state is donated, so the cache is updated in
place.

Shape letters: N tokens, R rows, S slots, D embed, V vocabulary, L layers with experts, E experts of
a token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.sharding import Sharding
from jaxtyping import Float, Int32

from dovetail_infer.step import logits as logit
from dovetail_infer.step.attend import PagedAttention, Pages, Requests, requests
from dovetail_infer.step.batch import Batch
from dovetail_infer.step.buckets import Bucket
from dovetail_infer.step.layout import Layout
from dovetail_infer.step.packing import Packing
from dovetail_infer.step.rules import Block, blocks
from dovetail_infer.types import Operations

# Rows of a chunk whose logits exist at once, for log-probabilities of prompts.
SCORE_ROWS = 64


class DeviceState(NamedTuple):
    """State that each step replaces.

    Attributes:
        pools: Pages of each layer.
        last: Last drawn token of each slot.
        slots: Bias, prompt, stops and counts of each slot.
    """

    pools: tuple[Array, ...]
    last: Int32[Array, " S"]
    slots: logit.State


class Outputs(NamedTuple):
    """Results of a step on the device.

    Attributes:
        packed: Token and the bits of logprobs, sampled_logprobs and log_mass of each row.
        top: Scores of the drawn tokens; None but for "full" and "score".
        kept: Bits of the kept tokens; None but for "full" and "score".
        prompt: Scores of the targets; None but for "score".
        experts: Experts of each token; None unless recorded.
        blocks: Logits and warped logits, for rules; None unless asked for.
    """

    packed: Int32[Array, "R 4"]
    top: logit.DeviceScores | None
    kept: Array | None
    prompt: logit.DeviceScores | None
    experts: Int32[Array, "N L E"] | None
    blocks: tuple[Block, ...] | None


@dataclasses.dataclass(frozen=True)
class StepFunction:
    """Makes the function of a bucket, for one decoder.

    Attributes:
        graph: The decoder without its arrays, of `nnx.split`.
        tree: Structure of its state.
        operations: The hot operations.
        layout: Cache layout.
        columns: Columns of a page table.
        max_rows: S.
        max_logprobs: Number of likeliest tokens of the kinds "full" and "score".
        adapters: Whether the decoder takes `adapter_ids`.
        invariant: Whether the bits of a row may not depend on other rows.
        whole: Sharding of logits on a mesh: draws read whole rows. None: one device.
        branches: Whether conditionals skip draws that no row needs. On a GPU the host would wait.
    """

    graph: Any
    tree: Any
    operations: Operations
    layout: Layout
    columns: int
    max_rows: int
    max_logprobs: int
    adapters: bool
    invariant: bool = False
    whole: Sharding | None = None
    branches: bool = True

    def packing(self, bucket: Bucket) -> Packing:
        """Returns the places of the input of a bucket."""
        return Packing(
            tokens=bucket.tokens,
            rows=bucket.rows,
            groups=len(self.layout.windows),
            columns=self.columns,
            max_rows=self.max_rows,
            targets=bucket.kind == "score",
        )

    def of(
        self, bucket: Bucket, *, ruled: bool = False
    ) -> Callable[..., tuple[DeviceState, Outputs]]:
        """Returns the function (parameters, state, vector) -> (state, outputs) of a bucket.

        Args:
            bucket: Size of the step.
            ruled: Whether to return the logits, and to leave rows with a rule to `rules.draw`.
        """
        packing = self.packing(bucket)

        def step(
            parameters: tuple[Array, ...], state: DeviceState, vector: Int32[Array, " size"]
        ) -> tuple[DeviceState, Outputs]:
            model = nnx.merge(self.graph, jax.tree.unflatten(self.tree, parameters))
            batch: Any = packing.unpack(vector)
            rows = requests(
                batch.tables, batch.counts, batch.lengths, bucket.tokens, single=bucket.single
            )
            x, pools, experts = self._features(model, state, batch, rows)
            # A row of padding reads any features: nothing of it is kept.
            last = x if bucket.single else x[jnp.maximum(rows.starts[1:] - 1, 0)]
            logits = self._logits(model, last)
            with jax.named_scope("sampling"):
                drawn = self._draw(logits, state.slots, batch, bucket, ruled)
            stored = batch.samples & ~batch.options.ruled if ruled else batch.samples
            state = self._next(state, pools, batch._replace(samples=stored), drawn, bucket)
            numbers = (drawn.logprobs, drawn.sampled_logprobs, drawn.log_mass)
            bits = (jax.lax.bitcast_convert_type(a, jnp.int32) for a in numbers)
            scored = bucket.kind == "score"
            return state, Outputs(
                packed=jnp.stack([drawn.tokens, *bits], axis=1),
                top=drawn.scores,
                kept=drawn.kept,
                prompt=self._scores(model, x, batch.targets) if scored else None,
                experts=experts,
                blocks=None
                if drawn.warped is None
                else blocks(logits.astype(jnp.float32), drawn.warped),
            )

        return step

    def _features(
        self, model: Any, state: DeviceState, batch: Batch, rows: Requests
    ) -> tuple[Float[Array, "N D"], tuple[Array, ...], Array | None]:
        """Returns the features of each token, the pages of each layer, and the experts."""
        real = rows.row_request < len(batch.counts)
        slots = jnp.asarray(batch.slots).at[rows.row_request].get(mode="fill", fill_value=0)
        tokens = jnp.asarray(batch.tokens)
        tokens = jnp.where(tokens < 0, state.last[slots], tokens)
        kv = [
            Pages(pool, layer.group, layer.value_width)
            for pool, layer in zip(state.pools, self.layout.layers, strict=True)
        ]
        options: dict[str, Any] = {}
        if self.adapters:
            ids = jnp.asarray(batch.adapters)
            ids = ids.at[rows.row_request].get(mode="fill", fill_value=-1)
            options["adapter_ids"] = ids[None]
        if self.layout.experts is not None:
            options["taps"] = ("experts",)
        x, entries, *tapped = model.features(
            jnp.maximum(tokens, 0)[None],  # -1 after a row with NaN, whose request ends
            positions=rows.positions[None],
            segment_ids=real.astype(jnp.int32)[None],
            attention=PagedAttention(self.operations, rows, self.invariant),
            kv=kv,
            **options,
        )
        pools = tuple(entry.array for entry in entries)
        experts = tapped[0]["experts"][:, 0].swapaxes(0, 1) if tapped else None
        return x[0], pools, experts

    def _logits(self, model: Any, x: Float[Array, "R D"]) -> Float[Array, "R V"]:
        logits = model.head(x)
        if self.whole is None:
            return logits
        return jax.lax.with_sharding_constraint(logits, self.whole)

    def _draw(
        self,
        logits: Float[Array, "R V"],
        slots: logit.State,
        batch: Any,
        bucket: Bucket,
        ruled: bool,
    ) -> logit.Drawn:
        options = batch.options._asdict()
        rows = logit.Rows(
            **options, positions=batch.lengths, slots=batch.slots, samples=batch.samples
        )
        return logit.draw(
            self.operations,
            logits,
            rows,
            slots if logit.reads_state(bucket.kind) else None,
            kind=bucket.kind,
            top=self.max_logprobs,
            ruled=ruled,
            branches=self.branches,
        )

    def _next(
        self,
        state: DeviceState,
        pools: tuple[Array, ...],
        batch: Any,
        drawn: logit.Drawn,
        bucket: Bucket,
    ) -> DeviceState:
        """Returns the state with the drawn tokens stored and counted."""
        slots = jnp.where(batch.samples, batch.slots, self.max_rows)
        last = state.last.at[slots].set(drawn.tokens, mode="drop")
        counted = state.slots
        if logit.reads_state(bucket.kind):
            counted = logit.counted(counted, slots, drawn.tokens)
        return DeviceState(pools, last, counted)

    def _scores(self, model: Any, x: Float[Array, "N D"], targets: Any) -> logit.DeviceScores:
        """Scores the token after each token, with the logits of a chunk of rows at a time."""
        size = min(SCORE_ROWS, x.shape[0])
        chunks = -(-x.shape[0] // size)
        padding = chunks * size - x.shape[0]
        x = jnp.pad(x, ((0, padding), (0, 0))).reshape(chunks, size, -1)
        targets = jnp.pad(targets, (0, padding), constant_values=-1).reshape(chunks, size)

        def chunk(rows: tuple[Array, Array]) -> logit.DeviceScores:
            return logit.score(self._logits(model, rows[0]), rows[1], top=self.max_logprobs)

        scores = jax.lax.map(chunk, (x, targets))
        return jax.tree.map(
            lambda a: a.reshape(chunks * size, *a.shape[2:])[: chunks * size - padding], scores
        )

# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The reference model of a preference loss: a field of the batch, a frozen twin, or no adapters.

A field costs no forward pass and no memory, and needs the pass over the data beforehand that
`with_reference` makes. A frozen twin costs a forward pass and its weights. With LoRA the base is
the reference, and costs the forward pass alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from dovetail_tune.types import Batch, Scorer


@dataclasses.dataclass(frozen=True)
class Field:
    """Reference log-probabilities are a field of the batch: f32[B] over a row, or f32[B, S].

    Args:
        name: Name of the field. Tokens with mask 0 have 0.
    """

    name: str = "ref_logps"


@dataclasses.dataclass(frozen=True)
class Frozen:
    """The model to train is a `Twin`, and its `frozen` module is the reference."""


@dataclasses.dataclass(frozen=True)
class AdaptersOff:
    """The reference is the model itself without its low-rank adapters.

    Every `nnx.LoRAParam` counts as an adapter, of `dovetail_models.lora`, `dovetail_quant.qlora` or
    flax. Train those alone, `trainable=nnx.LoRAParam`: a base that is trained is another reference
    at each step, and nothing tells.
    """


Reference: TypeAlias = Field | Frozen | AdaptersOff


class Twin(nnx.Module):
    """A module to train beside a frozen one: a policy and its reference, a student and its teacher.

    Pass `trainable=TRAINED` to the trainer. With its default, all parameters, weight decay changes
    the frozen module too, though no gradient reaches it.

    Args:
        trained: The module to train.
        frozen: Module that is only read. Its arrays may be those of `trained`, in Variables of its
            own: `nnx.clone`.

    Raises:
        ValueError: Both are one module, or share a Variable: training one would train the other.

    Example:

        >>> from flax import nnx
        >>> from dovetail_tune import TRAINED, Twin
        >>> twin = Twin(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), nnx.Linear(2, 1, rngs=nnx.Rngs(1)))
        >>> list(nnx.state(twin, TRAINED))
        ['trained']
    """

    def __init__(self, trained: nnx.Module, frozen: nnx.Module) -> None:
        own, other = (dict(_variables(module)) for module in (trained, frozen))
        if shared := own.keys() & other.keys():
            raise ValueError(
                f"a Twin needs two modules without a common Variable, got frozen with "
                f"{min(own[i] for i in shared)} of trained; pass Twin(model, nnx.clone(model))"
            )
        self.trained, self.frozen = trained, frozen


def _variables(module: nnx.Module) -> Iterator[tuple[int, str]]:
    """Yields the identity and the path of each Variable."""
    for path, node in nnx.iter_graph(module):
        if isinstance(node, nnx.Variable):
            yield id(node), ".".join(map(str, path))


#: The parameters to train of a `Twin`, for `Trainer(trainable=)`.
TRAINED = nnx.All(nnx.Param, nnx.PathContains("trained"))


def policy_of(model: Any, reference: Reference) -> Any:
    """Returns the decoder to train: `model`, or the trained one of a `Twin` with `Frozen`."""
    if isinstance(reference, Frozen) and not isinstance(model, Twin):
        raise TypeError(
            f"reference=Frozen() needs a Twin as the model, got {type(model).__name__}; train "
            "Twin(model, frozen_copy) with trainable=TRAINED"
        )
    return model.trained if isinstance(reference, Frozen) else model


def without_adapters(model: Any) -> Any:
    """Returns a copy whose low-rank adapters are 0. The arrays of all others are shared.

    Raises:
        ValueError: The model has no `nnx.LoRAParam`.
    """
    graph, adapters, rest = nnx.split(model, nnx.LoRAParam, ...)
    if not jax.tree.leaves(adapters):
        raise ValueError(
            f"reference=AdaptersOff() needs a model with low-rank adapters, got "
            f"{type(model).__name__} without an nnx.LoRAParam; insert some, or pass "
            "reference=Frozen()"
        )
    return nnx.merge(graph, jax.tree.map(jnp.zeros_like, adapters), rest)


def reference_logps(
    model: Any, batch: Batch, reference: Reference, *, scorer: Scorer
) -> Float[Array, "B S"] | Float[Array, " B"]:
    """Returns the log-probabilities of the reference, without a gradient.

    Args:
        model: The model to train.
        batch: Arrays by name.
        reference: The kind of reference.
        scorer: Scores the targets of the batch.

    Returns:
        Of each token [B, S], or of each row [B] as the field has it.
    """
    if isinstance(reference, Field):
        return jax.lax.stop_gradient(_field(batch, reference.name))
    frozen = without_adapters(model) if isinstance(reference, AdaptersOff) else model.frozen
    return jax.lax.stop_gradient(scorer(frozen, batch).logprob)


def _field(batch: Batch, name: str) -> Array:
    rows, length = batch["tokens"].shape
    if name not in batch:
        raise ValueError(
            f"reference=Field({name!r}) needs that field in the batch, got {sorted(batch)}; make "
            "it with with_reference(batches, model), or pass reference=Frozen() or AdaptersOff()"
        )
    logps = jnp.asarray(batch[name], jnp.float32)
    if logps.shape not in ((rows,), (rows, length)):
        raise ValueError(
            f"reference log-probabilities must be f32[{rows}] or f32[{rows}, {length}], got "
            f"{name}={logps.dtype}{list(logps.shape)}; make them with with_reference"
        )
    return logps

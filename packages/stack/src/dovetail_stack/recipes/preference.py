# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tuning on pairs of answers, whole or by adapters: a recipe for `fit`.

The reference, the model before training, is the cheapest that a run allows: adapters are switched
off, or its log-probabilities are a field of the rows, or a frozen copy is trained beside.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
from flax import nnx

import dovetail_tune as tune
from dovetail_models import Decoder, abstract
from dovetail_stack.recipes.continuation import continuation
from dovetail_stack.recipes.fitting import AnyMesh, Recipe, attention, pair_fields, step_flops
from dovetail_stack.recipes.record_options import BETAS, KINDS, WITH_REFERENCE, Adapting, Preferring
from dovetail_stack.recipes.reference import FIELD
from dovetail_stack.recipes.twin import DecoderTwin

_MISMATCHED = ("tokens", "targets", "segment_ids", "positions", "mask")  # fields of with_mismatched
scorer = functools.partial(tune.token_logps, attention=attention)


def reference_of(preferring: Preferring, tuning: Adapting) -> Any:
    """Returns the reference of a run, as `dovetail_tune` has them, or None.

    Example:

        >>> reference_of(Preferring(), Adapting())
        Field(name='ref_logps')
        >>> reference_of(Preferring(), Adapting(lora_rank=8))
        AdaptersOff()
    """
    if preferring.loss not in WITH_REFERENCE:
        return None
    if preferring.reference is None and tuning.lora_rank:
        return tune.AdaptersOff()
    if preferring.reference == "frozen" or preferring.loss == "kto":
        return tune.Frozen()
    return tune.Field(FIELD)


def loss_of(preferring: Preferring, *, tuning: Adapting) -> Any:
    """Returns the loss over batches of pairs."""
    name, reference = preferring.loss, reference_of(preferring, tuning)
    beta = BETAS[name] if preferring.beta is None else preferring.beta
    options: dict[str, Any] = {"beta": beta, "scorer": scorer}
    if reference is not None:
        options["reference"] = reference
    if name in KINDS:
        options["kind"] = preferring.kind or KINDS[name]
    if preferring.label_smoothing:
        options["label_smoothing"] = preferring.label_smoothing
    losses = {"dpo": tune.dpo, "orpo": tune.orpo, "simpo": tune.simpo}
    losses |= {"cpo": tune.cpo, "kto": tune.kto}
    loss = losses[name](**options)
    loss.rows = 2  # of kto too: the rows of a pair are told apart by their place
    return loss


def preferring_recipe(
    directory: Path,
    preferring: Preferring,
    *,
    tuning: Adapting,
    mesh: AnyMesh | None = None,
) -> Recipe:
    """Returns a recipe that trains the model of a directory on pairs of answers.

    Adapters are merged at the end. Pass the recipe to `fit`, with rows of `dovetail_data.pairs`,
    and of `Referenced` for a reference as a field.

    Args:
        directory: Hugging Face directory with a tokenizer.
        preferring: The loss and its reference.
        tuning: Settings; `lora_rank` above 0 trains adapters alone.
        mesh: Devices; abstract for `estimate_step` alone. Default: the first device.
    """
    base = continuation(directory, tuning, mesh=mesh)
    reference = reference_of(preferring, tuning)
    twin = isinstance(reference, tune.Frozen)
    mismatched = preferring.loss == "kto" and preferring.kind in (None, KINDS["kto"])
    fields = pair_fields(tuning, *([FIELD] if isinstance(reference, tune.Field) else []))
    if mismatched:
        fields |= {f"kl_{name}": fields[name] for name in _MISMATCHED}

    def decoder(module: Any) -> Decoder:
        return module.trained if twin else module

    def doubled(model: Any) -> nnx.Module:
        return DecoderTwin(model, _again(model)) if twin else model

    def operations() -> float:
        config = abstract(directory).config
        extra = isinstance(reference, tune.Frozen | tune.AdaptersOff)
        forward = step_flops(config, tuning, training=False) if extra else 0.0
        return step_flops(config, tuning) + forward

    return dataclasses.replace(
        base,
        loss=loss_of(preferring, tuning=tuning),
        model=lambda: doubled(base.model()),
        outline=lambda: doubled(base.outline()),
        trainable=nnx.All(base.trainable, nnx.PathContains("trained")) if twin else base.trainable,
        operations=operations,
        decoder=decoder,
        finished=lambda module: base.finished(decoder(module)),
        fields=fields,
        batches=tune.with_mismatched if mismatched else base.batches,
    )


def _again(model: Decoder) -> Decoder:
    """Returns another module over the same arrays. The trainer copies them."""
    graph, state = nnx.split(model)
    return nnx.merge(graph, jax.tree.map(lambda x: x, state))
